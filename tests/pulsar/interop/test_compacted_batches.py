"""Batches that Apache Pulsar has compacted, as it sends them: which of their messages are left."""

from __future__ import annotations

import asyncio
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from asyncgroup.pulsar.wire.commands import (
    PROTOCOL_VERSION,
    Command,
    CommandConnect,
    CommandConnected,
    CommandFlow,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandMessage,
    CommandSubscribe,
    CommandSuccess,
)
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from asyncgroup.pulsar.wire.enums import InitialPosition, SubType
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame
from asyncgroup.pulsar.wire.message_id import EARLIEST
from asyncgroup.pulsar.wire.metadata import SingleMessageMetadata
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.interop.messages import new_topic, producer

pytestmark = [pytest.mark.real, pytest.mark.full]

C = TypeVar("C", bound=Command)
LIMIT = 5 << 20


class Connection:
    """A connection to a broker that only reads and writes frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.frame = b""
        self.end = 0

    async def request(self, command: Command, answer: type[C]) -> C:
        self._writer.write(encode_frame(command))
        return await self.receive(answer)

    async def receive(self, wanted: type[C]) -> C:
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            self.frame = await self._reader.readexactly(size)
            found, self.end = decode_frame(self.frame)
            if isinstance(found, wanted):
                return found


async def read_compacted(pulsar: RunningPulsar, topic: str) -> Entry:
    """Return the first entry of a topic that was compacted."""
    address = urlsplit(pulsar.service_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        connection = Connection(reader, writer)
        await connection.request(
            CommandConnect(client_version="tests", protocol_version=PROTOCOL_VERSION), CommandConnected
        )
        await connection.request(CommandLookupTopic(topic=topic, request_id=1), CommandLookupTopicResponse)
        await connection.request(
            CommandSubscribe(
                topic=topic,
                subscription="reads",
                sub_type=SubType.EXCLUSIVE,
                consumer_id=1,
                request_id=2,
                durable=False,
                start_message_id=EARLIEST.data(),
                read_compacted=True,
                initial_position=InitialPosition.EARLIEST,
            ),
            CommandSuccess,
        )
        pushed = await connection.request(CommandFlow(consumer_id=1, message_permits=100), CommandMessage)
        return decode_entry(pushed, connection.frame, connection.end, -1, LIMIT)
    finally:
        writer.close()


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_the_retained_messages_of_a_compacted_batch_are_read(
    apache_pulsar: RunningPulsar, compression: str
) -> None:
    name = new_topic()
    topic = f"persistent://public/default/{name}"
    records = [("k0", b"v0"), ("k1", b"v1"), ("k2", b"v2"), ("k1", None), ("k0", b"v4")]
    async with producer(
        apache_pulsar, topic, compression=compression, compression_min_size=0, batching_max_delay=1.0
    ) as sends:
        sent = [sends.send_nowait(value=value, key=key) for key, value in records]
        assert len({(await each).entry_id for each in sent}) == 1, "one batch"
    path = f"persistent/public/default/{name}/compaction"
    await apache_pulsar.admin.request("PUT", path)
    async with asyncio.timeout(60):
        while (status := await apache_pulsar.admin.request("GET", path))["status"] != "SUCCESS":
            assert status["status"] == "RUNNING", status
            await asyncio.sleep(0.1)
        entry = await read_compacted(apache_pulsar, topic)
    assert entry.count == 5
    assert entry.metadata.compacted_batch_indexes == [2, 4]
    assert [(one.index, one.key, one.value) for one in entry.messages()] == [
        (2, b"k2", b"v2"),
        (4, b"k0", b"v4"),
    ]
    # the others are marked as well, as by earlier releases
    assert [is_marked(entry, index) for index in range(5)] == [True, True, False, True, False]


def is_marked(entry: Entry, index: int) -> bool:
    """Return whether a message of a batch is marked as compacted."""
    assert entry.bounds is not None
    start, end, _ = entry.bounds[index]
    return SingleMessageMetadata.decode(entry.body, start, end).compacted_out
