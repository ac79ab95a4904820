"""Large values in chunks on a real Kafka: written, put together, held commits; read by another client as plain records."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer, ProducerConfig
from asyncgroup.cluster import Cluster
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import OffsetManager
from asyncgroup.wire.chunks import ChunkInfo, split_value
from tests.peers import import_peer
from tests.real.support import RunningKafka, new_topic

MIB = 1 << 20
WAIT = 60.0


def read_with_confluent(servers: str, topic: str, count: int) -> list[tuple[list[tuple[str, bytes]] | None, bytes | None, bytes]]:  # fmt: skip
    """Return headers, key and value of the first records of partition 0, as confluent-kafka reads them."""
    confluent = import_peer("confluent_kafka")
    consumer = confluent.Consumer(
        {"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False}
    )
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    found: list[tuple[list[tuple[str, bytes]] | None, bytes | None, bytes]] = []
    deadline = time.monotonic() + WAIT
    try:
        while len(found) < count and time.monotonic() < deadline:
            if (message := consumer.poll(1.0)) is not None:
                assert message.error() is None
                found.append((message.headers(), message.key(), message.value()))
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(
    "codec",
    ["none", *(pytest.param(codec, marks=pytest.mark.full) for codec in ("gzip", "snappy", "lz4", "zstd"))],
)
async def test_ten_mebibytes_and_another_client(apache_kafka: RunningKafka, codec: Any) -> None:
    servers = apache_kafka.bootstrap_servers
    values = [random.Random(seed).randbytes(size) for seed, size in ((1, 10 * MIB), (2, 3 * MIB))]
    config = ProducerConfig(chunking=True, buffer_bytes=2 * MIB, compression_type=codec)
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster, "chunks")
        async with Producer(cluster, config) as one, Producer(cluster, config) as two:
            first, second = await asyncio.gather(
                one.send(topic, values[0], key=b"k"), two.send(topic, values[1])
            )
            assert second.first_offset < first.offset
            last = await one.send(topic, b"small")
        plain = await asyncio.to_thread(read_with_confluent, servers, topic, last.offset + 1)
        by_uuid: dict[bytes, list[bytes]] = {}
        for headers, key, value in plain[:-1]:
            assert headers is not None
            names = dict(headers)
            assert list(names) == ["ag-chunk-uuid", "ag-chunk-id", "ag-chunk-count", "ag-chunk-size"]
            assert key in (b"k", None)
            parts = by_uuid.setdefault(names["ag-chunk-uuid"], [])
            assert int(names["ag-chunk-id"]) == len(parts)
            parts.append(value)
        assert sorted(b"".join(parts) for parts in by_uuid.values()) == sorted(values)
        assert plain[-1] == (None, None, b"small")

        settings = ConsumerConfig(chunks="assemble", auto_offset_reset="earliest")
        async with ConsumerGroup(cluster, topic, settings) as group, group.records(topic) as records:
            found = [await asyncio.wait_for(anext(records), WAIT) for _ in range(3)]
            assert sorted(record.value or b"" for record in found) == sorted([*values, b"small"])
            assert {(record.first_offset, record.offset) for record in found} == {
                (first.first_offset, first.offset),
                (second.first_offset, second.offset),
                (last.offset, last.offset),
            }


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.full)])
async def test_a_member_that_ends_in_mid_value(apache_kafka: RunningKafka, protocol: Any) -> None:
    """The commit stays at the first chunk, and the next member hands the value out."""
    config = ConsumerConfig(chunks="assemble", auto_offset_reset="earliest", group_protocol=protocol)
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, "chunks")
        async with Producer(cluster) as producer:
            chunks = list(split_value("a-1", b"abcdef", 2))

            async def write(chunk: tuple[ChunkInfo, bytes]) -> None:
                await producer.send(topic, chunk[1], headers=chunk[0].headers())

            await write(chunks[0])
            await producer.send(topic, b"whole")
            await write(chunks[1])
            for wanted, end in ((b"whole", 0), (b"whole", None)):
                async with ConsumerGroup(cluster, topic, config) as group, group.records(topic) as records:
                    record = await asyncio.wait_for(anext(records), WAIT)
                    assert record.value == wanted
                    group.mark(record)
                    if end is None:
                        await write(chunks[2])
                        record = await asyncio.wait_for(anext(records), WAIT)
                        assert (record.value, record.first_offset, record.offset) == (b"abcdef", 0, 3)
                        group.mark(record)
                async with OffsetManager(cluster, topic) as manager:
                    found = await manager.fetch([(topic, 0)])
                    assert found[TopicPartition(topic, 0)].offset == (4 if end is None else end)
