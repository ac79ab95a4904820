"""Record validation and conversion on Produce, acks=all and in-sync replicas, DeleteRecords, over the wire."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import batch, sequenced, with_crc
from tests.broker.client import Client, connect
from tests.broker.internals import log_of
from tests.broker.requests import fetch, now, partitions_of, produce, put

TODAY = 1_700_000_000_000
HOUR = 3_600_000


def keyless(*keys: bytes | None) -> bytes:
    builder = BatchBuilder("none", 1 << 20)
    for key in keys:
        assert builder.append(TODAY, key, b"v")
    return builder.build()


async def read(client: Client, cluster: EmbeddedCluster, offset: int = 0, **fields):
    answer = await client.ask(fetch(cluster, 0, offset=offset, max_wait_ms=0, **fields))
    return partitions_of(answer)[0]


@pytest.mark.parametrize(
    ("configs", "data", "error", "wrong"),
    [
        ({}, batch(b"a", timestamp=TODAY + HOUR), ErrorCode.NONE, []),
        ({}, batch(b"a", timestamp=0), ErrorCode.NONE, []),
        ({}, batch(b"a", b"b", timestamp=TODAY + HOUR - 1, step=2000), ErrorCode.INVALID_TIMESTAMP, [1]),
        (
            {"message.timestamp.after.max.ms": "10"},
            batch(b"a", b"b", timestamp=TODAY + 50),
            ErrorCode.INVALID_TIMESTAMP,
            [0, 1],
        ),
        (
            {"message.timestamp.before.max.ms": "10000"},
            batch(b"a", b"b", timestamp=TODAY - 10_001, step=2000),
            ErrorCode.INVALID_TIMESTAMP,
            [0],
        ),
        ({"message.timestamp.before.max.ms": "10"}, batch(b"a", timestamp=-1), ErrorCode.NONE, []),
        ({"cleanup.policy": "compact"}, keyless(b"k", None, None), ErrorCode.INVALID_RECORD, [1, 2]),
        ({"cleanup.policy": "compact,delete"}, keyless(b"k", b"l"), ErrorCode.NONE, []),
        ({}, keyless(None), ErrorCode.NONE, []),
        ({"internal.segment.bytes": "100"}, batch(b"a" * 100), ErrorCode.RECORD_LIST_TOO_LARGE, []),
        ({}, with_crc(batch(b"a"), 22, b"\x07"), ErrorCode.UNKNOWN_SERVER_ERROR, []),
        ({}, with_crc(batch(b"a"), 22, b"\x01"), ErrorCode.UNKNOWN_SERVER_ERROR, []),
        ({}, with_crc(batch(b"a"), 22, b"\x20"), ErrorCode.INVALID_RECORD, []),
        ({}, struct.pack(">q", 5) + batch(b"a")[8:], ErrorCode.INVALID_RECORD, []),
        ({"cleanup.policy": "compact"}, with_crc(batch(b"a"), 61, b"\xff" * 4), ErrorCode.INVALID_RECORD, []),
    ],
)
async def test_record_validation(configs, data, error, wrong):
    async with EmbeddedCluster(start_time=TODAY) as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs=configs)
        for version in (7, 8, 13):
            (result,) = await put(client, cluster, data, version=version)
            assert result.error_code == error
            reported = wrong if version >= 8 else []
            assert [one.batch_index for one in result.record_errors] == reported
            assert (result.error_message is not None) == bool(reported)
            assert all(one.batch_index_error_message for one in result.record_errors)
        assert bool(cluster.records("t")) == (not error)


async def test_an_incomplete_second_batch_is_cut_off(cluster, client):
    cluster.create_topic("t")
    (result,) = await put(client, cluster, batch(b"a") + batch(b"b")[:-1])
    assert (result.error_code, result.base_offset) == (0, 0)
    (result,) = await put(client, cluster, batch(b"c"))
    assert result.base_offset == 1
    assert [record.value for record in cluster.records("t")] == [b"a", b"c"]


async def test_log_append_time():
    async with EmbeddedCluster(start_time=TODAY) as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
        await asyncio.sleep(5)
        data = sequenced(0, 2)  # timestamps of 1970 are accepted with LogAppendTime
        (result,) = await put(client, cluster, data)
        assert (result.error_code, result.log_append_time_ms) == (0, TODAY + 5000)
        await asyncio.sleep(5)
        (again,) = await put(client, cluster, data)
        assert (again.base_offset, again.log_append_time_ms) == (0, TODAY + 5000)
        records = cluster.records("t")
        assert [(r.timestamp, r.timestamp_type) for r in records] == [(TODAY + 5000, 1)] * 2
        (header,) = iter_batches(bytes((await read(client, cluster)).records))
        assert (header.timestamp_type, header.max_timestamp, header.base_sequence) == (1, TODAY + 5000, 0)
        (result,) = await put(client, cluster, with_crc(batch(b"a", timestamp=TODAY), 22, b"\x08"))
        assert result.error_code == ErrorCode.INVALID_TIMESTAMP


async def test_create_time_clears_the_append_time_flag():
    async with EmbeddedCluster(start_time=TODAY) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        (result,) = await put(client, cluster, with_crc(batch(b"a", timestamp=TODAY), 22, b"\x08"))
        assert (result.error_code, result.log_append_time_ms) == (0, -1)
        assert [r.timestamp_type for r in cluster.records("t")] == [0]


async def test_a_duplicate_returns_the_timestamp_of_the_first_append(cluster, client):
    cluster.create_topic("t")
    (first,) = await put(client, cluster, sequenced(0))
    (again,) = await put(client, cluster, sequenced(0))
    assert (first.log_append_time_ms, again.log_append_time_ms) == (-1, 1000)
    await put(client, cluster, batch(b"x", timestamp=7))
    log_of(cluster, "t", 0).delete_records(1)
    (again,) = await put(client, cluster, sequenced(0))
    assert (again.error_code, again.base_offset, again.log_append_time_ms) == (0, 0, 1000)


@pytest.mark.parametrize(
    ("wanted", "sent", "stored"),
    [
        ("producer", "gzip", 1),
        ("uncompressed", "gzip", 0),
        ("zstd", "none", 4),
        ("lz4", "snappy", 3),
        ("snappy", "snappy", 2),
    ],
)
async def test_compression_type_of_a_topic(cluster, client, wanted, sent, stored):
    cluster.create_topic("t", configs={"compression.type": wanted})
    data = batch(b"a", b"b", codec=sent, step=5, producer_id=7, producer_epoch=2, base_sequence=3)
    (result,) = await put(client, cluster, data)
    assert result.error_code == 0
    (header,) = iter_batches(bytes((await read(client, cluster)).records))
    assert header.codec == stored
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 3)
    assert [(r.value, r.timestamp) for r in cluster.records("t")] == [(b"a", 1000), (b"b", 1005)]


async def test_clients_may_not_write_to_internal_topics(cluster):
    async with connect(cluster) as client:
        await client.ask(m.FindCoordinatorRequest(coordinator_keys=["g"]))
        (result,) = await put(client, cluster, batch(b"a"), topic="__consumer_offsets")
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    async with connect(cluster, client_id="__admin_client") as admin:
        (result,) = await put(admin, cluster, batch(b"a"), topic="__consumer_offsets")
        assert result.error_code == 0


# -- replicas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("needed", "replicas", "error"), [(2, 3, 0), (3, 3, 19), (5, 3, 19), (5, 1, 0)])
async def test_min_insync_replicas(needed, replicas, error):
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 1, replicas, configs={"min.insync.replicas": str(needed)})
        leader = cluster.leader("t", 0)
        async with connect(cluster, leader) as client:
            (result,) = await put(client, cluster, batch(b"a"))
            assert result.error_code == 0
            await cluster.stop_node(leader % 3 + 1)
            (result,) = await put(client, cluster, batch(b"b"))
            assert result.error_code == error
            (result,) = await put(client, cluster, batch(b"c"), acks=1)
            assert result.error_code == 0
            await cluster.start_node(leader % 3 + 1)
            (result,) = await put(client, cluster, batch(b"d"))
            assert result.error_code == 0


async def test_held_followers():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster) as client, connect(cluster) as reader:
        cluster.create_topic("t", 1, 2)
        cluster.move_leader("t", 0, 1)
        await put(client, cluster, batch(b"a"))
        cluster.hold_followers("t", 0)
        (result,) = await put(client, cluster, batch(b"b"), acks=1)
        assert (result.error_code, result.base_offset) == (0, 1)
        before = now()
        (result,) = await put(client, cluster, batch(b"c"))
        assert now() - before == pytest.approx(1)  # the request's timeout
        assert (result.error_code, result.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 2)
        seen = await read(reader, cluster)
        assert (seen.high_watermark, seen.last_stable_offset) == (1, 1)
        assert [h.base_offset for h in iter_batches(bytes(seen.records))] == [0]
        assert not (await read(reader, cluster, 1)).records

        waiting = asyncio.ensure_future(put(client, cluster, batch(b"d")))
        parked = asyncio.ensure_future(reader.ask(fetch(cluster, 0, offset=1, max_wait_ms=800)))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        assert not parked.done()
        cluster.release_followers("t", 0)
        ((result,), answer) = await asyncio.gather(waiting, parked)
        assert (result.error_code, result.base_offset) == (0, 3)
        assert now() - before == pytest.approx(1.5)
        assert partitions_of(answer)[0].high_watermark == 4


@asynccontextmanager
async def parked_write() -> AsyncIterator[tuple[EmbeddedCluster, asyncio.Future[Any]]]:
    """Start a cluster in which a Produce has waited for a stopped follower for half a second."""
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 1, 2)
        cluster.move_leader("t", 0, 1)
        cluster.hold_followers("t", 0)
        waiting = asyncio.ensure_future(put(client, cluster, batch(b"a")))
        await asyncio.sleep(0.5)
        yield cluster, waiting


async def test_a_new_leader_completes_a_parked_write():
    async with parked_write() as (cluster, waiting):
        cluster.move_leader("t", 0, 2)
        (result,) = await waiting
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_deleted_topic_completes_a_parked_write():
    async with parked_write() as (cluster, waiting):
        cluster.delete_topic("t")
        (result,) = await waiting
        assert (now(), result.error_code) == (0.5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_not_enough_replicas_after_append():
    async with EmbeddedCluster(nodes=3) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 1, 3, configs={"min.insync.replicas": "2"})
        cluster.move_leader("t", 0, 1)
        cluster.hold_followers("t", 0)
        waiting = asyncio.ensure_future(put(client, cluster, batch(b"a")))
        await asyncio.sleep(0.5)
        await cluster.stop_node(2)
        await cluster.stop_node(3)
        cluster.release_followers("t", 0)
        (result,) = await waiting
        assert (result.error_code, result.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 0)


# -- DeleteRecords -----------------------------------------------------------------------------------------------


def delete(*partitions: tuple[int, int], topic: str = "t") -> m.DeleteRecordsRequest:
    wanted = [m.DeleteRecordsRequest.DeleteRecordsPartition(*one) for one in partitions]
    return m.DeleteRecordsRequest([m.DeleteRecordsRequest.DeleteRecordsTopic(topic, wanted)], 1000)


def results(answer: m.DeleteRecordsResponse) -> list[tuple[int, int, int]]:
    return [(p.partition_index, p.low_watermark, p.error_code) for t in answer.topics for p in t.partitions]


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(cluster, client, version):
    cluster.create_topic("t", 2)
    for _ in range(3):
        await put(client, cluster, batch(b"a", b"b"))
    answer = await client.ask(delete((0, 3), (1, 0), (7, 0)), version)
    assert results(answer) == [(0, 3, 0), (1, 0, 0), (7, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    seen = await read(client, cluster, 3)
    assert (seen.error_code, seen.log_start_offset) == (0, 3)
    assert (await read(client, cluster, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    earliest = m.ListOffsetsRequest.ListOffsetsPartition(timestamp=-2)
    asked = m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic("t", [earliest])])
    assert (await client.ask(asked)).topics[0].partitions[0].offset == 3
    assert results(await client.ask(delete((0, 1)), version)) == [(0, 3, 0)]  # the start never moves back
    for offset in (7, -2):
        answer = await client.ask(delete((0, offset)), version)
        assert results(answer) == [(0, -1, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert results(await client.ask(delete((0, -1)), version)) == [(0, 6, 0)]
    (result,) = await put(client, cluster, batch(b"c"))
    assert (result.base_offset, result.log_start_offset) == (6, 6)


async def test_delete_records_errors():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("compacted", configs={"cleanup.policy": "compact"})
        cluster.create_topic("t")
        cluster.move_leader("compacted", 0, 1)
        cluster.move_leader("t", 0, 2)
        await client.ask(m.FindCoordinatorRequest(coordinator_keys=["g"]))
        for topic, error in (
            ("compacted", ErrorCode.POLICY_VIOLATION),
            ("t", ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ):
            assert results(await client.ask(delete((0, 0), topic=topic))) == [(0, -1, error)]


async def test_delete_records_completes_a_parked_fetch_before_the_new_start():
    async with EmbeddedCluster() as cluster, connect(cluster) as client, connect(cluster) as admin:
        cluster.create_topic("t")
        await put(admin, cluster, batch(b"a", b"b"))
        parked = asyncio.ensure_future(client.ask(fetch(cluster, 0, max_wait_ms=5000, min_bytes=10_000)))
        await asyncio.sleep(1)
        await admin.ask(delete((0, -1)))
        assert partitions_of(await parked)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert now() < 2


async def test_a_refused_partition_does_not_wait_for_followers(cluster, client):
    """With acks=all, a request for several partitions waits only for those that were appended to."""
    cluster.create_topic("t", 2)
    cluster.hold_followers("t", 0)
    request = produce(cluster, batch(b"a")[:-1] + b"!", batch(b"b"))
    (topic,) = (await client.ask(request)).responses
    codes = [partition.error_code for partition in topic.partition_responses]
    assert codes == [ErrorCode.CORRUPT_MESSAGE, 0]
    assert now() < 0.1
