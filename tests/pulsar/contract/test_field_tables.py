"""The tables of fields, types and enums are those that Apache Pulsar publishes; what they leave out is listed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from asyncgroup.pulsar.wire import enums
from asyncgroup.pulsar.wire.commands import COMMANDS, PROTOCOL_VERSION
from asyncgroup.pulsar.wire.compression import COMPRESSIONS
from asyncgroup.pulsar.wire.entry import (
    BATCH_ERROR,
    CHECKSUM_MISMATCH,
    DECOMPRESSION_ERROR,
    DECRYPTION_ERROR,
    UNCOMPRESSED_SIZE_CORRUPTION,
)
from asyncgroup.pulsar.wire.fields import FieldOfMessage, fields_of
from asyncgroup.pulsar.wire.message import ProtoMessage
from asyncgroup.pulsar.wire.server_errors import ServerError
from tests.pulsar.contract.published import published_defaults, published_enums, published_fields
from tests.pulsar.wire.strategies import CLASSES

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("pulsar_at_hand")]

EVERY = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)

LEFT_OUT = {
    # what a proxy forwards, and the deprecated number of an authentication method
    "CommandConnect": {
        "auth_method",
        "original_auth_data",
        "original_auth_method",
        "original_principal",
        "proxy_version",
    },
    "CommandLookupTopic": {"original_auth_data", "original_auth_method", "original_principal", "properties"},
    "CommandPartitionedTopicMetadata": {"original_auth_data", "original_auth_method", "original_principal"},
    "CommandGetTopicsOfNamespace": {"properties"},
    # schemas: values are bytes here
    "CommandSuccess": {"schema"},
    # between clusters
    "CommandSend": {"marker", "message_id"},
    "CommandAck": {"properties"},
    # encrypted messages are recognized by their keys, and not read
    "MessageMetadata": {"encryption_algo", "encryption_param", "schema_id"},
}
"""Fields that are skipped when they are read."""

COMMANDS_LEFT_OUT = {
    "CONSUMER_STATS", "CONSUMER_STATS_RESPONSE",
}  # fmt: skip
"""Statistics."""

MESSAGES_LEFT_OUT = {
    # of commands that are left out
    "CommandConsumerStats", "CommandConsumerStatsResponse",
    # markers of replicated subscriptions
    "ClusterMessageId", "MarkersMessageIdData", "ReplicatedSubscriptionsSnapshot", "ReplicatedSubscriptionsSnapshotRequest",
    "ReplicatedSubscriptionsSnapshotResponse", "ReplicatedSubscriptionsUpdate",
    # written and read in place
    "BaseCommand", "KeyValue",
    # of the properties of acknowledgements
    "KeyLongValue",
}  # fmt: skip

SIGNED = {
    ("CommandMessage", "ack_set"),
    ("CommandProducerSuccess", "last_sequence_id"),
    ("MessageIdData", "ack_set"),
    ("MessageMetadata", "deliver_at_time"),
}
"""Fields that `PulsarApi.proto` has as int64; its other numbers of 64 bits are uint64."""

UNSIGNED = {
    ("CommandFlow", "message_permits"),
    ("CommandMessage", "redelivery_count"),
    ("CommandPartitionedTopicMetadataResponse", "partitions"),
    ("MessageMetadata", "uncompressed_size"),
}
"""Fields that `PulsarApi.proto` has as uint32; its other numbers of 32 bits are int32 or enums."""


def published_kind(cls: type[ProtoMessage], field: FieldOfMessage) -> str:
    place = (cls.__name__, field.name)
    match field.kind:
        case "uint64":
            assert place not in SIGNED
            return "int64"
        case "int64":
            assert place in SIGNED
        case "uint32":
            assert place in UNSIGNED
            return "int32"
        case "int32":
            assert place not in UNSIGNED
        case "properties":
            return "KeyValue"
        case "message":
            assert field.message is not None
            return field.message.__name__
    return field.kind


@EVERY
def test_numbers_kinds_labels_and_defaults(cls: type[ProtoMessage]) -> None:
    published, defaults = published_fields()[cls.__name__], published_defaults().get(cls.__name__, {})
    values = published_enums()
    fields = {field.name: field for field in fields_of(cls)}
    assert published.keys() - fields.keys() == LEFT_OUT.get(cls.__name__, set())
    for name, field in fields.items():
        expected = published[name]
        is_enum = expected.kind in values
        label = "repeated" if field.repeated else "required" if field.required else "optional"
        kind = published_kind(cls, field)
        assert (field.number, kind, label) == (
            expected.number,
            "int32" if is_enum else expected.kind,
            expected.label,
        )
        if not field.repeated and field.default is not None:
            default: Any = defaults[name]
            assert field.default == (values[expected.kind][default] if is_enum else default), name


def test_presence_is_kept_where_it_matters() -> None:
    # also where the published default is a number
    absent = {
        (cls.__name__, field.name)
        for cls in CLASSES
        for field in fields_of(cls)
        if not field.required and field.default is None
    }
    assert absent >= {
        ("MessageMetadata", "num_messages_in_batch"),
        ("MessageMetadata", "partition_key"),
        ("MessageMetadata", "num_chunks_from_msg"),
        ("SingleMessageMetadata", "sequence_id"),
        ("CommandAck", "request_id"),
        ("CommandAck", "validation_error"),
        ("CommandAckResponse", "error"),
        ("CommandSeek", "message_publish_time"),
        ("CommandProducer", "topic_epoch"),
    }


def test_commands_and_their_types() -> None:
    published = published_enums()["BaseCommand.Type"]
    kinds = {field.number: field.kind for field in published_fields()["BaseCommand"].values()}
    assert {kind: cls.__name__ for kind, cls in COMMANDS.items()} == {kind: kinds[kind] for kind in COMMANDS}
    assert {name for name, number in published.items() if number not in COMMANDS} == COMMANDS_LEFT_OUT


def test_messages_that_are_left_out() -> None:
    assert published_fields().keys() - {cls.__name__ for cls in CLASSES} == MESSAGES_LEFT_OUT


def test_the_tables_of_what_is_left_out_name_fields_that_exist() -> None:
    names = {(cls.__name__, field.name) for cls in CLASSES for field in fields_of(cls)}
    assert names >= SIGNED | UNSIGNED
    assert {cls.__name__ for cls in CLASSES} >= LEFT_OUT.keys()


ENUMS: dict[str, type[IntEnum]] = {
    "CommandSubscribe.SubType": enums.SubType,
    "CommandSubscribe.InitialPosition": enums.InitialPosition,
    "KeySharedMode": enums.KeySharedMode,
    "ProducerAccessMode": enums.ProducerAccessMode,
    "CommandAck.AckType": enums.AckType,
    "CommandLookupTopicResponse.LookupType": enums.LookupType,
    "CommandGetTopicsOfNamespace.Mode": enums.TopicsMode,
    "CommandTopicMigrated.ResourceType": enums.MigratedResource,
    "MarkerType": enums.MarkerType,
    "TxnAction": enums.TxnAction,
    "ServerError": ServerError,
}


def same_name(name: str) -> str:
    return name.replace("_", "").lower()


@pytest.mark.parametrize("name", ENUMS)
def test_enums(name: str) -> None:
    published = {same_name(key): value for key, value in published_enums()[name].items()}
    assert {same_name(one.name): one.value for one in ENUMS[name]} == published


def test_every_enum_of_the_room_is_compared() -> None:
    assert {getattr(enums, name) for name in enums.__all__} | {ServerError} == {*ENUMS.values()}


def test_names_of_server_errors() -> None:
    assert {error.published_name: error.value for error in ServerError} == published_enums()["ServerError"]


def test_numbers_that_have_other_names_here() -> None:
    published = published_enums()
    assert {name.upper(): kind for name, kind in COMPRESSIONS.items()} == published["CompressionType"]
    assert published["CommandAck.ValidationError"] == {
        "UncompressedSizeCorruption": UNCOMPRESSED_SIZE_CORRUPTION,
        "DecompressionError": DECOMPRESSION_ERROR,
        "ChecksumMismatch": CHECKSUM_MISMATCH,
        "BatchDeSerializeError": BATCH_ERROR,
        "DecryptionError": DECRYPTION_ERROR,
    }
    assert max(published["ProtocolVersion"].values()) == PROTOCOL_VERSION
