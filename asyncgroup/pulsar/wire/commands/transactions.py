"""Commands for the coordinators of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from asyncgroup.pulsar.wire.commands.command import Command
from asyncgroup.pulsar.wire.fields import INT32, MESSAGE, STRING, UINT64, Field
from asyncgroup.pulsar.wire.message import ProtoMessage

__all__ = [
    "CommandAddPartitionToTxn",
    "CommandAddPartitionToTxnResponse",
    "CommandAddSubscriptionToTxn",
    "CommandAddSubscriptionToTxnResponse",
    "CommandEndTxn",
    "CommandEndTxnOnPartition",
    "CommandEndTxnOnPartitionResponse",
    "CommandEndTxnOnSubscription",
    "CommandEndTxnOnSubscriptionResponse",
    "CommandEndTxnResponse",
    "CommandNewTxn",
    "CommandNewTxnResponse",
    "CommandTcClientConnectRequest",
    "CommandTcClientConnectResponse",
    "SubscriptionOfTxn",
]


@dataclass(slots=True, kw_only=True)
class CommandTcClientConnectRequest(Command):
    """Connects to a transaction coordinator, before requests to it (`CommandTcClientConnectRequest`)."""

    TYPE: ClassVar = 62
    request_id: Annotated[int, Field(1, UINT64)]
    tc_id: Annotated[int, Field(2, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandTcClientConnectResponse(Command):
    """The answer to CommandTcClientConnectRequest."""

    TYPE: ClassVar = 63
    request_id: Annotated[int, Field(1, UINT64)]
    error: Annotated[int | None, Field(2, INT32)] = None
    message: Annotated[str | None, Field(3, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandNewTxn(Command):
    """Opens a transaction, which the coordinator aborts after `txn_ttl_seconds`: a number of milliseconds, in spite of its name."""

    TYPE: ClassVar = 50
    request_id: Annotated[int, Field(1, UINT64)]
    txn_ttl_seconds: Annotated[int, Field(2, UINT64)] = 0
    tc_id: Annotated[int, Field(3, UINT64)] = 0


@dataclass(slots=True, kw_only=True)
class CommandNewTxnResponse(Command):
    """The answer to CommandNewTxn: the id of the transaction, whose most significant bits are the coordinator's.

    Go's client ends its process if one of them is absent, also for 0.
    """

    TYPE: ClassVar = 51
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int | None, Field(2, UINT64)] = None
    txnid_most_bits: Annotated[int | None, Field(3, UINT64)] = None
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandAddPartitionToTxn(Command):
    """Adds topics, each of one partition, to a transaction before its first message to them."""

    TYPE: ClassVar = 52
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    partitions: Annotated[Sequence[str], Field(4, STRING, repeated=True)] = ()


@dataclass(slots=True, kw_only=True)
class CommandAddPartitionToTxnResponse(Command):
    """The answer to CommandAddPartitionToTxn."""

    TYPE: ClassVar = 53
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class SubscriptionOfTxn(ProtoMessage):
    """A subscription to one topic whose acknowledgements are part of a transaction (`Subscription` of `PulsarApi.proto`)."""

    topic: Annotated[str, Field(1, STRING)]
    subscription: Annotated[str, Field(2, STRING)]


@dataclass(slots=True, kw_only=True)
class CommandAddSubscriptionToTxn(Command):
    """Adds subscriptions to a transaction before its first acknowledgement in them."""

    TYPE: ClassVar = 54
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    subscription: Annotated[Sequence[SubscriptionOfTxn], Field(4, MESSAGE, repeated=True)] = ()


@dataclass(slots=True, kw_only=True)
class CommandAddSubscriptionToTxnResponse(Command):
    """The answer to CommandAddSubscriptionToTxn."""

    TYPE: ClassVar = 55
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxn(Command):
    """Commits a transaction (`txn_action` 0) or aborts it (1)."""

    TYPE: ClassVar = 56
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    txn_action: Annotated[int | None, Field(4, INT32)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxnResponse(Command):
    """The answer to CommandEndTxn."""

    TYPE: ClassVar = 57
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxnOnPartition(Command):
    """Commits or aborts a transaction in one topic, as its coordinator does: aborts also older ones of it up to the low watermark."""

    TYPE: ClassVar = 58
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    topic: Annotated[str | None, Field(4, STRING)] = None
    txn_action: Annotated[int | None, Field(5, INT32)] = None
    txnid_least_bits_of_low_watermark: Annotated[int | None, Field(6, UINT64)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxnOnPartitionResponse(Command):
    """The answer to CommandEndTxnOnPartition."""

    TYPE: ClassVar = 59
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxnOnSubscription(Command):
    """Commits or aborts a transaction in one subscription, as CommandEndTxnOnPartition does in a topic."""

    TYPE: ClassVar = 60
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    subscription: Annotated[SubscriptionOfTxn | None, Field(4, MESSAGE)] = None
    txn_action: Annotated[int | None, Field(5, INT32)] = None
    txnid_least_bits_of_low_watermark: Annotated[int | None, Field(6, UINT64)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxnOnSubscriptionResponse(Command):
    """The answer to CommandEndTxnOnSubscription."""

    TYPE: ClassVar = 61
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None
