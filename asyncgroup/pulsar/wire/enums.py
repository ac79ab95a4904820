"""Values of fields that are enums in `PulsarApi.proto`. A field itself is a number: newer values are kept."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "AckType",
    "InitialPosition",
    "KeySharedMode",
    "LookupType",
    "MarkerType",
    "MigratedResource",
    "ProducerAccessMode",
    "SubType",
    "TopicsMode",
    "TxnAction",
]


class SubType(IntEnum):
    """`CommandSubscribe.sub_type`."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def published_name(self) -> str:
        """Its name in Pulsar's statistics and in Java: `Key_Shared`."""
        return "_".join(word.capitalize() for word in self.name.split("_"))


class InitialPosition(IntEnum):
    """`CommandSubscribe.initial_position`: where a new subscription begins."""

    LATEST = 0
    EARLIEST = 1


class KeySharedMode(IntEnum):
    """`KeySharedMeta.key_shared_mode`."""

    AUTO_SPLIT = 0
    STICKY = 1


class ProducerAccessMode(IntEnum):
    """`CommandProducer.producer_access_mode`."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def published_name(self) -> str:
        """Its name in Pulsar's statistics and in Java: `WaitForExclusive`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class AckType(IntEnum):
    """`CommandAck.ack_type`."""

    INDIVIDUAL = 0
    CUMULATIVE = 1


class LookupType(IntEnum):
    """`CommandLookupTopicResponse.response`."""

    REDIRECT = 0
    CONNECT = 1
    FAILED = 2


class MarkerType(IntEnum):
    """`MessageMetadata.marker_type` (`PulsarMarkers.proto`): what brokers write for themselves."""

    UNKNOWN_MARKER = 0
    REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST = 10
    REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE = 11
    REPLICATED_SUBSCRIPTION_SNAPSHOT = 12
    REPLICATED_SUBSCRIPTION_UPDATE = 13
    TXN_COMMITTING = 20
    TXN_COMMIT = 21
    TXN_ABORT = 22


class TopicsMode(IntEnum):
    """`CommandGetTopicsOfNamespace.mode`."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2


class TxnAction(IntEnum):
    """`CommandEndTxn.txn_action`."""

    COMMIT = 0
    ABORT = 1


class MigratedResource(IntEnum):
    """`CommandTopicMigrated.resource_type`."""

    PRODUCER = 0
    CONSUMER = 1
