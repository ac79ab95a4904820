"""The client's tables of fields are those that Apache Pulsar publishes: numbers, kinds, labels, defaults, enums."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import pytest

from asyncgroup.pulsar.wire import commands, enums, metadata
from asyncgroup.pulsar.wire.commands import COMMANDS
from asyncgroup.pulsar.wire.compression import COMPRESSIONS
from asyncgroup.pulsar.wire.fields import MESSAGE, PROPERTIES, FieldOfMessage, fields_of
from asyncgroup.pulsar.wire.message import ProtoMessage
from asyncgroup.pulsar.wire.server_errors import ServerError
from tests.pulsar.contract.published import (
    PublishedField,
    published_defaults,
    published_enums,
    published_fields,
)

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("pulsar_at_hand")]

MESSAGES: Final[list[type[Any]]] = [
    value
    for module in (commands, metadata)
    for value in vars(module).values()
    if isinstance(value, type)
    and issubclass(value, ProtoMessage)
    and value.__module__.startswith(module.__name__)
    if value is not commands.Command
]

LEFT_OUT: Final[dict[str, str]] = {
    # a proxy sends what it knows of its client
    "CommandConnect": "auth_method original_auth_data original_auth_method original_principal proxy_version",
    "CommandLookupTopic": "original_auth_data original_auth_method original_principal properties",
    "CommandPartitionedTopicMetadata": "original_auth_data original_auth_method original_principal",
    # schemas: messages are bytes
    "CommandSuccess": "schema",
    # replication between clusters
    "CommandSend": "marker message_id",
    "CommandAck": "properties",
    "CommandGetTopicsOfNamespace": "properties",
    "MessageMetadata": "encryption_algo encryption_param schema_id",
}
"""Fields that the client neither reads nor writes, by message. A field of a newer release is noticed."""

ENUMS: Final[dict[str, type[IntEnum]]] = {
    "CommandAck.AckType": enums.AckType,
    "CommandGetTopicsOfNamespace.Mode": enums.TopicsMode,
    "CommandLookupTopicResponse.LookupType": enums.LookupType,
    "CommandSubscribe.InitialPosition": enums.InitialPosition,
    "CommandSubscribe.SubType": enums.SubType,
    "CommandTopicMigrated.ResourceType": enums.MigratedResource,
    "MarkerType": enums.MarkerType,
    "KeySharedMode": enums.KeySharedMode,
    "ProducerAccessMode": enums.ProducerAccessMode,
    "ServerError": ServerError,
    "TxnAction": enums.TxnAction,
}


def as_published(field: FieldOfMessage, published_kind: str) -> PublishedField:
    """Return a field of the client's tables in the words of the published ones, which do not show signs."""
    kind = field.kind.removeprefix("u")
    if field.kind == MESSAGE:
        assert field.message is not None
        kind = field.message.__name__
    elif field.kind == PROPERTIES:
        kind = "KeyValue"
    elif kind == "int32" and published_kind in published_enums():
        kind = published_kind
    is_repeated = field.repeated or field.kind == PROPERTIES
    return PublishedField(
        field.number, kind, "repeated" if is_repeated else "required" if field.required else "optional"
    )


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_fields(message: type[Any]) -> None:
    published = published_fields()[message.__name__]
    ours = {
        field.name: as_published(field, published[field.name].kind)
        for field in fields_of(message)
        if field.name in published
    }
    assert {field.name for field in fields_of(message)} <= published.keys()
    assert ours == {name: published[name] for name in ours}
    assert sorted(published.keys() - ours.keys()) == LEFT_OUT.get(message.__name__, "").split()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_defaults(message: type[Any]) -> None:
    """A field whose presence matters has the default None here."""
    published, names = published_defaults()[message.__name__], published_enums()
    kinds = published_fields()[message.__name__]
    ours = {
        field.name: field.default
        for field in fields_of(message)
        if field.name in published and field.default is not None
    }
    theirs = {
        name: names[kinds[name].kind][str(published[name])] if kinds[name].kind in names else published[name]
        for name in ours
    }
    assert ours == theirs


def test_commands_have_the_numbers_of_their_types() -> None:
    numbers = {field.kind: field.number for field in published_fields()["BaseCommand"].values()}
    assert {command.__name__: number for number, command in COMMANDS.items()} == {
        command.__name__: numbers[command.__name__] for command in COMMANDS.values()
    }
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("name", ENUMS)
def test_enums(name: str) -> None:
    ours = {each.name.replace("_", "").lower(): each.value for each in ENUMS[name]}
    assert ours == {key.replace("_", "").lower(): value for key, value in published_enums()[name].items()}


def test_compressions() -> None:
    published = {name.lower(): value for name, value in published_enums()["CompressionType"].items()}
    assert published == COMPRESSIONS


def test_the_protocol_version_is_the_newest() -> None:
    assert max(published_enums()["ProtocolVersion"].values()) == commands.PROTOCOL_VERSION
