"""Other clients read with read_committed what our producer writes on a real Kafka: Java, librdkafka, sarama, franz-go.

Each reads the same records as our consumer: keys, values, headers, timestamps and offsets, in the order of each partition, and
the same committed offset. Records of aborted transactions are not among them; the chunks of a value are records like others.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pytest

from asyncgroup import (
    Cluster,
    CommittedOffset,
    Consumer,
    ConsumerConfig,
    GroupOffsets,
    Producer,
    ProducerConfig,
    RecordMetadata,
    TopicPartition,
)
from asyncgroup.model import Header
from asyncgroup.wire.chunks import CHUNK_HEADERS, is_chunk, read_chunk_info
from tests.interop.go_clients import BUILD_LIMIT, build_go_clients
from tests.interop.java_tools import JavaTools
from tests.peers import import_peer
from tests.real.support import RunningKafka
from tests.real.test_producer import new_topic

pytestmark = pytest.mark.full

WAIT: Final = 60.0
PARTITIONS: Final = 2
TIME: Final = 1_700_000_000_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE: Final = bytes(range(256)) * 1000
CHUNK_SIZE: Final = 100_000

HEADERS: Final[tuple[tuple[Header, ...], ...]] = (
    (),
    (("name", b"content"),),
    (("null", None), ("empty", b""), ("", b"no name")),
    (("twice", b"1"), ("twice", b"2"), ("grüße", b"\x00\xff")),
)
KEYS: Final = (None, b"", b"key", b"\x00\xff")
VALUES: Final = (None, b"", b"short", b"long" * 200)


class Row(NamedTuple):
    """A record as a client reads it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Seen(NamedTuple):
    """What a client reads."""

    records: list[Row]
    """In the order of each partition."""
    committed: int
    """The group's offset of partition 0."""


# --- our producer -----------------------------------------------------------------------------------------------------


class Written:
    """What read_committed must deliver: `rows`, and the values in chunks by partition and first offset."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.in_chunks: dict[tuple[int, int], tuple[int, tuple[Header, ...]]] = {}
        self.committed = -1

    def add_chunked(self, place: RecordMetadata, headers: tuple[Header, ...]) -> None:
        self.in_chunks[place.partition, place.first_offset] = (
            place.offset - place.first_offset + 1,
            headers,
        )

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.rows) + sum(chunks for chunks, _ in self.in_chunks.values())


async def write_rows(producer: Producer, topic: str, numbers: range) -> list[Row]:
    """Write records of all kinds; return them as they are to be read."""
    sent = []
    for n in numbers:
        key, value, headers = KEYS[n // 4 % 4], VALUES[n % 4], HEADERS[n // 16 % 4]
        future = producer.send_nowait(
            topic, value, key=key, headers=headers, partition=n % PARTITIONS, timestamp=TIME + n
        )
        sent.append((future, TIME + n, key, value, headers))
    await producer.flush()
    return [
        Row((place := await future).partition, place.offset, *fields)  # type: ignore[call-arg]
        for future, *fields in sent
    ]


async def write_everything(cluster: Cluster, topic: str, group: str) -> Written:
    """Write with each codec, in chunks, and in transactions of which every second one is aborted."""
    written = Written()
    for codec in CODECS:
        async with Producer(cluster, ProducerConfig(compression_type=codec)) as producer:
            written.rows += await write_rows(producer, topic, range(64))
        settings: dict[str, Any] = {"chunking": True, "max_chunk_size": CHUNK_SIZE, "compression_type": codec}
        async with Producer(cluster, ProducerConfig(**settings)) as producer:
            place = await producer.send(
                topic, LARGE, key=b"large", headers=HEADERS[3], partition=1, timestamp=TIME
            )
            written.add_chunked(place, HEADERS[3])
        name = f"{topic}-{codec}"
        async with Producer(
            cluster, ProducerConfig(transactional_id=name, compression_type=codec)
        ) as producer:
            await write_transactions(producer, topic, group, written)
        async with Producer(cluster, ProducerConfig(transactional_id=name, **settings)) as producer:
            await write_chunks_in_transactions(producer, topic, written)
    async with Producer(cluster) as producer:
        written.rows += await write_rows(producer, topic, range(PARTITIONS))
    return written


async def write_transactions(producer: Producer, topic: str, group: str, written: Written) -> None:
    for number in range(4):
        try:
            async with producer.transaction():
                rows = await write_rows(producer, topic, range(number, number + 20))
                next_offset = rows[-1].offset
                offsets = {TopicPartition(topic, 0): CommittedOffset(next_offset)}
                await producer.send_offsets(GroupOffsets(group, offsets))
                if number % 2:
                    raise ZeroDivisionError
            written.rows += rows
            written.committed = next_offset
        except ZeroDivisionError:
            pass


async def write_chunks_in_transactions(producer: Producer, topic: str, written: Written) -> None:
    for commits in (False, True):
        try:
            async with producer.transaction():
                place = await producer.send(topic, LARGE, key=b"large", partition=0, timestamp=TIME)
                if not commits:
                    raise ZeroDivisionError
            written.add_chunked(place, ())
        except ZeroDivisionError:
            pass


# --- the readers --------------------------------------------------------------------------------------------------------


async def read_with_asyncgroup(cluster: Cluster, topic: str, written: Written) -> list[Row]:
    """Return the records of each partition, up to the last one that was written."""
    config = ConsumerConfig(isolation_level="read_committed")
    rows: list[Row] = []
    async with asyncio.timeout(WAIT), Consumer(cluster, config) as consumer:
        for number in range(PARTITIONS):
            last = max(row.offset for row in written.rows if row.partition == number)
            reader = await consumer.partition(topic, number, 0)
            async for r in reader:
                rows.append(Row(r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers)))
                if r.offset == last:
                    break
            await reader.aclose()
    return rows


Reader: TypeAlias = Callable[[str, str, str, int], Seen]
"""Reads with: bootstrap servers, topic, group, number of records. May block."""


def parsed(lines: list[str]) -> Seen:
    """Parse the output of `Read.java` and `reading.go`."""
    rows, committed = [], -1
    for kind, *fields in (line.split("\t") for line in lines):
        if kind == "record":
            numbers = map(int, fields[:3])
            pairs = [pair.split("=") for pair in fields[5].split(",") if pair]
            headers = tuple((bytes.fromhex(name).decode(), unhex(value)) for name, value in pairs)
            rows.append(Row(*numbers, unhex(fields[3]), unhex(fields[4]), headers))
        elif kind == "committed":
            committed = int(fields[0])
    return Seen(rows, committed)


def unhex(text: str) -> bytes | None:
    return None if text == "null" else bytes.fromhex(text)


def java_reader(tools: JavaTools) -> Reader:
    def read(servers: str, topic: str, group: str, count: int) -> Seen:
        program = Path(__file__).with_name("Read.java")
        output = tools.run(program, servers, topic, group, str(PARTITIONS), str(count), limit=WAIT)
        assert output.code == 0, output.text[-3000:]
        return parsed(output.lines)

    return read


def go_reader(client: str) -> Reader:
    program = build_go_clients()

    def read(servers: str, topic: str, group: str, count: int) -> Seen:
        command = [program, servers, "read", client, topic, group, str(PARTITIONS), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return parsed(done.stdout.splitlines())

    return read


def read_with_librdkafka(servers: str, topic: str, group: str, count: int) -> Seen:
    confluent = import_peer("confluent_kafka")
    settings = {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False}
    consumer = confluent.Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([confluent.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    rows: list[Row] = []
    deadline = time.monotonic() + WAIT
    try:
        while len(rows) < count and time.monotonic() < deadline:
            for r in consumer.consume(500, timeout=0.2):
                assert r.error() is None, r.error()
                headers = tuple(r.headers() or ())
                rows.append(Row(r.partition(), r.offset(), r.timestamp()[1], r.key(), r.value(), headers))
        (found,) = consumer.committed([confluent.TopicPartition(topic, 0)], WAIT)
    finally:
        consumer.close()
    return Seen(rows, found.offset)


# --- the tests ------------------------------------------------------------------------------------------------------------


def values_in_chunks(rows: list[Row]) -> Iterator[tuple[tuple[int, int], tuple[int, tuple[Header, ...]]]]:
    """Yield place, number of chunks and headers of each value in chunks; check the chunks of each."""
    chunks = [row for row in rows if is_chunk(row.headers)]
    for _, parts in groupby(chunks, lambda row: row.headers[0]):
        several = list(parts)
        infos = [read_chunk_info(row.headers) for row in several]
        numbers = [(info.chunk_id, info.chunk_count, info.total_size) for info in infos if info is not None]
        assert numbers == [(n, len(several), len(LARGE)) for n in range(len(several))]
        assert b"".join(row.value or b"" for row in several) == LARGE
        assert {(row.key, row.timestamp) for row in several} == {(b"large", TIME)}
        (others,) = {row.headers[len(CHUNK_HEADERS) :] for row in several}
        yield (several[0].partition, several[0].offset), (len(several), others)


def check_ours(rows: list[Row], written: Written) -> None:
    assert [row for row in rows if not is_chunk(row.headers)] == sorted(written.rows, key=place_of)
    assert dict(values_in_chunks(rows)) == written.in_chunks
    assert len(rows) == written.count
    assert all(count > 2 for count, _ in written.in_chunks.values())


def place_of(row: Row) -> tuple[int, int]:
    return row.partition, row.offset


@pytest.mark.timeout(BUILD_LIMIT + 2 * WAIT)
@pytest.mark.parametrize("client", ["java", "librdkafka", "sarama", "franz-go"])
async def test_reads_what_our_consumer_reads(
    apache_kafka: RunningKafka, java_tools: JavaTools, client: str
) -> None:
    servers, group = apache_kafka.bootstrap_servers, f"readers-{uuid.uuid4().hex[:8]}"
    if client == "java":
        read = java_reader(java_tools)
    else:
        read = read_with_librdkafka if client == "librdkafka" else await asyncio.to_thread(go_reader, client)
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster, PARTITIONS, keeps_old_records=True)
        written = await write_everything(cluster, topic, group)
        ours = await read_with_asyncgroup(cluster, topic, written)
        check_ours(ours, written)
        theirs = await asyncio.to_thread(read, servers, topic, group, written.count)
    in_order = [row for number in range(PARTITIONS) for row in theirs.records if row.partition == number]
    assert in_order == ours
    assert theirs.committed == written.committed
