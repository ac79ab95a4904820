"""What a client may write that no client writes, and how a broker answers; for the embedded Pulsar and a real one.

    for name, story in STORIES.items():
        assert await heard(service_url, story.commands(topic)) == story.expected

A story is what is written after CONNECT, and its answers: their commands with the errors, at the end `closed` if the broker has ended
the connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame, encode_send
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["CONNECT", "STORIES", "HostileStory", "heard"]

QUIET: Final = 8.0
"""Seconds without an answer after which none follows."""

CONNECT: Final = c.CommandConnect(client_version="hostile", protocol_version=21)


class HostileStory(NamedTuple):
    """What is written, as commands or bytes, and the answers."""

    expected: list[str]
    commands: Callable[[str], Sequence[c.Command | bytes]]
    connects: bool = True


async def heard(url: str, written: Sequence[c.Command | bytes]) -> list[str]:
    """Write commands, each after the answer to the one before, and return what the broker answers."""
    host, _, port = url.removeprefix("pulsar://").partition(",")[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    found: list[str] = []
    try:
        for each in written:
            writer.write(each if isinstance(each, bytes) else encode_frame(each))
            if (answer := await _answer(reader)) is not None:
                found.append(answer)
    except (EOFError, ConnectionError):
        found.append("closed")
    finally:
        writer.transport.abort()
    return found


async def _answer(reader: asyncio.StreamReader) -> str | None:
    """Return what the broker says next; None if it says nothing."""
    try:
        async with asyncio.timeout(QUIET):
            while True:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                command, _ = decode_frame(await reader.readexactly(size))
                if not isinstance(command, c.CommandPing):
                    return _shown(command)
    except TimeoutError:
        return None


def _shown(command: Any) -> str:
    name = type(command).__name__.removeprefix("Command")
    error = getattr(command, "error", None) or getattr(command, "error_code", None)
    if isinstance(command, c.CommandProducerSuccess):
        name += f" {command.producer_name}, last {command.last_sequence_id}, ready {command.producer_ready}"
    return name if error is None else f"{name} {ServerError(error).published_name}"


def _lookup(topic: str) -> c.Command:
    return c.CommandLookupTopic(topic=topic, request_id=1)


def _producer(topic: str, number: int = 1, **fields: Any) -> c.Command:
    return c.CommandProducer(topic=topic, producer_id=number, request_id=2, **{"producer_name": "p"} | fields)


def _subscribe(topic: str, **fields: Any) -> c.Command:
    given: dict[str, Any] = {"subscription": "s", "sub_type": 0, "consumer_id": 1, "request_id": 3}
    return c.CommandSubscribe(topic=topic, **given | fields)


_ID: Final = c.MessageIdData(ledger_id=1 << 40, entry_id=7)


def _damaged() -> bytes:
    """Return a SEND whose checksum is wrong."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).encode()
    head, rest = encode_send(c.CommandSend(producer_id=1, sequence_id=0), metadata, b"v")
    return head + rest[:-1] + b"w"


_OLD_JSON: Final = b'{"type": "object", "id": "urn:jsonschema:x", "properties": {"a": {"type": "string"}}}'

CONNECTED: Final = ["Connected"]
LOOKED_UP: Final = [*CONNECTED, "LookupTopicResponse"]
PRODUCING: Final = [*LOOKED_UP, "ProducerSuccess p, last -1, ready True"]

STORIES: Final[dict[str, HostileStory]] = {
    "another_command_first": HostileStory(["closed"], lambda topic: [_lookup(topic)], connects=False),
    "a_pong_first": HostileStory([], lambda _: [c.CommandPong()], connects=False),
    "an_empty_frame": HostileStory([*CONNECTED, "closed"], lambda _: [b"\0\0\0\0"]),
    "a_frame_without_a_command": HostileStory([*CONNECTED, "closed"], lambda _: [b"\0\0\0\x04\0\0\0\0"]),
    "connect_twice": HostileStory([*CONNECTED, "closed"], lambda _: [CONNECT]),
    "what_a_broker_says": HostileStory([*CONNECTED, "closed"], lambda _: [c.CommandSuccess(request_id=5)]),
    "a_topic_without_a_name": HostileStory(
        [*CONNECTED, "LookupTopicResponse InvalidTopicName"], lambda _: [_lookup("")]
    ),
    "a_producer_id_twice": HostileStory(
        [*PRODUCING, "ProducerSuccess p, last -1, ready True"],
        lambda topic: [_lookup(topic), _producer(topic), _producer(topic, producer_name="q")],
    ),
    "a_consumer_id_twice": HostileStory(
        [*LOOKED_UP, "Success", "Success"],
        lambda topic: [_lookup(topic), _subscribe(topic), _subscribe(topic, subscription="t", sub_type=1)],
    ),
    "a_type_of_subscription_that_there_is_not": HostileStory(
        [*LOOKED_UP, "closed"], lambda topic: [_lookup(topic), _subscribe(topic, sub_type=9)]
    ),
    "a_position_that_there_is_not": HostileStory(
        [*LOOKED_UP, "Success"], lambda topic: [_lookup(topic), _subscribe(topic, initial_position=9)]
    ),
    "an_access_mode_that_there_is_not": HostileStory(
        PRODUCING, lambda topic: [_lookup(topic), _producer(topic, producer_access_mode=9)]
    ),
    "ids_that_nothing_has": HostileStory(
        [*CONNECTED, *["Error MetadataError"] * 3, "Success", "Success"],
        lambda _: [
            c.CommandSeek(consumer_id=5, request_id=1, message_publish_time=0),
            c.CommandUnsubscribe(consumer_id=5, request_id=2),
            c.CommandGetLastMessageId(consumer_id=5, request_id=6),
            c.CommandAck(consumer_id=5, ack_type=0, message_id=[_ID], request_id=7),
            c.CommandCloseConsumer(consumer_id=5, request_id=3),
            c.CommandCloseProducer(producer_id=5, request_id=4),
            c.CommandFlow(consumer_id=5, message_permits=1),
            c.CommandRedeliverUnacknowledgedMessages(consumer_id=5),
        ],
    ),
    "permits_of_nothing": HostileStory(
        [*LOOKED_UP, "Success", "closed"],
        lambda topic: [_lookup(topic), _subscribe(topic), c.CommandFlow(consumer_id=1, message_permits=0)],
    ),
    "a_seek_to_nothing": HostileStory(
        [*LOOKED_UP, "Success", "Error MetadataError"],
        lambda topic: [_lookup(topic), _subscribe(topic), c.CommandSeek(consumer_id=1, request_id=4)],
    ),
    "a_transaction_that_there_is_not": HostileStory(
        [*CONNECTED, "EndTxnResponse TransactionCoordinatorNotFound"],
        lambda _: [c.CommandEndTxn(request_id=1, txnid_most_bits=99, txnid_least_bits=7)],
    ),
    "an_end_of_a_transaction_that_there_is_not": HostileStory(
        [*CONNECTED, "EndTxnResponse TransactionCoordinatorNotFound"],
        lambda _: [c.CommandEndTxn(request_id=1, txnid_most_bits=99, txn_action=9)],
    ),
    "a_kind_of_acknowledgement_that_there_is_not": HostileStory(
        [*LOOKED_UP, "Success", "closed"],
        lambda topic: [
            _lookup(topic),
            _subscribe(topic),
            c.CommandAck(consumer_id=1, ack_type=9, message_id=[_ID], request_id=7),
        ],
    ),
    "an_acknowledgement_of_what_there_is_not": HostileStory(
        [*LOOKED_UP, "Success", "AckResponse", "AckResponse"],
        lambda topic: [
            _lookup(topic),
            _subscribe(topic),
            c.CommandAck(consumer_id=1, ack_type=0, message_id=[_ID], request_id=7),
            c.CommandAck(consumer_id=1, ack_type=0, message_id=[], request_id=8),
        ],
    ),
    "a_mode_of_key_shared_that_there_is_not": HostileStory(
        [*LOOKED_UP, "closed"],
        lambda topic: [
            _lookup(topic),
            _subscribe(topic, sub_type=3, key_shared_meta=c.KeySharedMeta(key_shared_mode=9)),
        ],
    ),
    "a_name_of_a_producer_twice": HostileStory(
        [*PRODUCING, "Error ProducerBusy"],
        lambda topic: [_lookup(topic), _producer(topic), _producer(topic, 2)],
    ),
    "a_topic_that_was_not_looked_up": HostileStory(
        [*CONNECTED, "Error ServiceNotReady"], lambda _: [_subscribe("persistent://public/none/t")]
    ),
    "a_pattern_that_is_none": HostileStory(
        [*CONNECTED, "Error InvalidTopicName"],
        lambda _: [
            c.CommandWatchTopicList(
                request_id=1, watcher_id=1, namespace="public/default", topics_pattern="((("
            )
        ],
    ),
    "topics_of_a_namespace_that_there_is_not": HostileStory(
        [*CONNECTED, "GetTopicsOfNamespaceResponse"],
        lambda _: [c.CommandGetTopicsOfNamespace(request_id=1, namespace="public/none")],
    ),
    "another_pattern_that_is_none": HostileStory(
        [*CONNECTED, "Error MetadataError"],
        lambda _: [
            c.CommandGetTopicsOfNamespace(request_id=1, namespace="public/default", topics_pattern="(((")
        ],
    ),
    "permits_below_0": HostileStory(
        [*LOOKED_UP, "Success", "closed"],
        lambda topic: [
            _lookup(topic),
            _subscribe(topic),
            c.CommandFlow(consumer_id=1, message_permits=(1 << 32) - 1),
        ],
    ),
    "a_watch_of_a_namespace_without_a_name": HostileStory(
        [*CONNECTED, "closed"],
        lambda _: [c.CommandWatchTopicList(request_id=1, watcher_id=1, namespace="", topics_pattern="x")],
    ),
    "a_cumulative_acknowledgement_where_there_is_none": HostileStory(
        [*LOOKED_UP, "Success", "AckResponse"],
        lambda topic: [
            _lookup(topic),
            _subscribe(topic, sub_type=1),
            c.CommandAck(consumer_id=1, ack_type=1, message_id=[_ID, _ID], request_id=7),
        ],
    ),
    "a_message_of_a_producer_that_there_is_not": HostileStory(
        [*CONNECTED, "closed"],
        lambda _: [b"".join(encode_send(c.CommandSend(producer_id=5, sequence_id=1), b"", b""))],
    ),
    "a_message_that_is_damaged": HostileStory(
        [*PRODUCING, "SendError ChecksumError"],
        lambda topic: [_lookup(topic), _producer(topic), _damaged()],
    ),
    "no_partition_of_a_topic": HostileStory(
        [*CONNECTED, "PartitionedTopicMetadataResponse"],
        lambda topic: [
            c.CommandPartitionedTopicMetadata(topic=topic + "-partition-7", request_id=1),
        ],
    ),
    "a_schema_that_there_is_not": HostileStory(
        [*LOOKED_UP, "GetSchemaResponse TopicNotFound"],
        lambda topic: [_lookup(topic), c.CommandGetSchema(topic=topic, request_id=1)],
    ),
    "a_schema_of_nothing": HostileStory(
        [*LOOKED_UP, "GetOrCreateSchemaResponse TopicNotFound"],
        lambda topic: [
            _lookup(topic),
            c.CommandGetOrCreateSchema(
                topic=topic, request_id=1, schema=c.Schema(name="", schema_data=b"{", type=4)
            ),
        ],
    ),
    "a_version_of_a_schema_that_is_none": HostileStory(
        [*LOOKED_UP, "closed"],
        lambda topic: [_lookup(topic), c.CommandGetSchema(topic=topic, request_id=1, schema_version=b"{}")],
    ),
    "a_type_of_schema_that_there_is_not": HostileStory(
        [*LOOKED_UP, "closed"],
        lambda topic: [_lookup(topic), _producer(topic, schema=c.Schema(name="", schema_data=b"", type=-1))],
    ),
    "a_number_with_data": HostileStory(
        [*LOOKED_UP, "Error IncompatibleSchema"],
        lambda topic: [_lookup(topic), _producer(topic, schema=c.Schema(name="", schema_data=b"{}", type=9))],
    ),
    "json_that_is_none": HostileStory(
        [*LOOKED_UP, "Error IncompatibleSchema"],
        lambda topic: [_lookup(topic), _producer(topic, schema=c.Schema(name="", schema_data=b"{}", type=2))],
    ),
    "json_of_an_old_client": HostileStory(
        [*LOOKED_UP, "Error IncompatibleSchema"],
        lambda topic: [
            _lookup(topic),
            _producer(topic, schema=c.Schema(name="", schema_data=_OLD_JSON, type=2)),
        ],
    ),
    "permits_of_a_consumer_that_there_is_not": HostileStory(
        CONNECTED, lambda _: [c.CommandFlow(consumer_id=5, message_permits=0)]
    ),
    "a_schema_that_is_none": HostileStory(
        [*LOOKED_UP, "Error IncompatibleSchema"],
        lambda topic: [_lookup(topic), _producer(topic, schema=c.Schema(name="", schema_data=b"{", type=4))],
    ),
    "a_namespace_without_a_name": HostileStory(
        [*CONNECTED, "closed"],
        lambda _: [c.CommandGetTopicsOfNamespace(request_id=1, namespace="")],
    ),
}
"""By name."""
