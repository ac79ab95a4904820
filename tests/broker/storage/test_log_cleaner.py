"""The schedule of the log cleaner, by the loop's time and the topics' configs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.client import Client, connect
from tests.broker.internals import controller_of, log_of, node_of, topic_of
from tests.broker.storage.test_retention import HOUR, START, fill, offsets, virtually

pytestmark = virtually

COMPACT = {"cleanup.policy": "compact"}


def put(
    cluster: EmbeddedCluster, key: bytes, value: bytes | None = b"v", *, age: int = 0, index: int = 0
) -> None:
    """Append a record in its own batch, `age` ms older than the cluster's present time."""
    builder = BatchBuilder()
    builder.append(node_of(cluster, 1).clock() - age, key, value)
    append(log_of(cluster, "t", index), builder.build(), 0)


async def test_a_topic_that_is_dirty_enough_is_cleaned_every_15_seconds():
    configs = {**COMPACT, "delete.retention.ms": "600000", "internal.segment.bytes": "100"}
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", configs=configs)
        fill(cluster, "t", 0, 0, 0)
        await asyncio.sleep(14)
        assert offsets(cluster, "t") == [0, 1, 2]
        await asyncio.sleep(2)
        assert offsets(cluster, "t") == [1, 2], "the active segment is not cleaned"
        put(cluster, b"k", None)
        fill(cluster, "t", 0, key=b"other")
        await asyncio.sleep(13)
        assert offsets(cluster, "t") == [1, 2, 3, 4]
        await asyncio.sleep(2)
        assert offsets(cluster, "t") == [3, 4]
        for _ in range(3):  # without dirty records the log is not cleaned again
            await asyncio.sleep(300)
            fill(cluster, "t", 0, 0, key=b"other")
        await asyncio.sleep(16)
        assert 3 not in offsets(cluster, "t"), "the tombstone is past its delete horizon"


@pytest.mark.parametrize(("ratio", "cleaned"), [("0.4", True), ("0.5", False), ("0.6", False)])
async def test_min_cleanable_dirty_ratio(ratio, cleaned):
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", configs={**COMPACT, "min.cleanable.dirty.ratio": ratio})
        fill(cluster, "t", 0, 0)
        cluster.compact("t")
        fill(cluster, "t", 0, 0)  # as many bytes as the cleaned part
        await asyncio.sleep(16)
        assert offsets(cluster, "t") == ([2, 3] if cleaned else [1, 2, 3])


async def test_min_compaction_lag():
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", configs={**COMPACT, "min.compaction.lag.ms": "60000"})
        fill(cluster, "t", HOUR, HOUR, 0, 0, 0)
        await asyncio.sleep(16)
        assert offsets(cluster, "t") == [1, 2, 3, 4]
        await asyncio.sleep(60)
        assert offsets(cluster, "t") == [3, 4]


async def test_max_compaction_lag():
    """As in Kafka, an old active segment is rolled by the next append, not by time alone."""
    configs = {**COMPACT, "max.compaction.lag.ms": "60000", "min.cleanable.dirty.ratio": "1"}
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", configs=configs)
        for _ in range(3):
            put(cluster, b"k")
        await asyncio.sleep(200)
        assert offsets(cluster, "t") == [0, 1, 2]
        put(cluster, b"k")
        assert len(log_of(cluster, "t", 0).segments) == 2
        await asyncio.sleep(16)
        assert offsets(cluster, "t") == [2, 3]
        put(cluster, b"k")
        log_of(cluster, "t", 0).roll()
        await asyncio.sleep(50)
        assert offsets(cluster, "t") == [2, 3, 4], "not overdue yet"
        await asyncio.sleep(30)
        assert offsets(cluster, "t") == [4]


async def test_the_filthiest_log_is_cleaned_first_and_each_in_its_own_step(monkeypatch):
    cleaned, clean = [], PartitionLog.clean

    def note(log, *args) -> None:
        cleaned.append((log.partition, asyncio.get_running_loop().time()))
        asyncio.get_running_loop().call_soon(cleaned.append, "others")
        clean(log, *args)

    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", 3, configs={**COMPACT, "min.cleanable.dirty.ratio": "0.1"})
        for index, dirty in enumerate((1, 5, 3)):
            put(cluster, b"k", index=index)
            log = log_of(cluster, "t", index)
            log.compact(START, HOUR)
            for _ in range(dirty):
                put(cluster, b"k", index=index)
            log.roll()
        monkeypatch.setattr(PartitionLog, "clean", note)
        await asyncio.sleep(16)
        assert cleaned == [(1, 15.0), "others", (2, 15.0), "others", (0, 15.0), "others"]


async def alter_backoff(client: Client, milliseconds: str) -> None:
    request = m.IncrementalAlterConfigsRequest
    config = request.AlterableConfig("log.cleaner.backoff.ms", 0, milliseconds)
    answer = await client.ask(request([request.AlterConfigsResource(4, "", [config])]))
    assert [one.error_code for one in answer.responses] == [0]


async def test_the_backoff_can_be_altered():
    async with EmbeddedCluster(start_time=START) as cluster, connect(cluster) as client:
        await alter_backoff(client, "2000")
        cluster.create_topic("t", configs=COMPACT)
        fill(cluster, "t", 0, 0, 0)
        await asyncio.sleep(2.5)
        assert offsets(cluster, "t") == [1, 2]


async def test_a_new_backoff_applies_at_once():
    """It does not wait for the old backoff, which may be hours (`LogCleaner.reconfigure` restarts its threads)."""
    async with EmbeddedCluster(start_time=START) as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs=COMPACT)
        await alter_backoff(client, "3600000")
        await asyncio.sleep(1)
        await alter_backoff(client, "2000")
        fill(cluster, "t", 0, 0, 0)
        await asyncio.sleep(2.5)
        assert offsets(cluster, "t") == [1, 2]


async def test_the_backoff_survives_a_restart(tmp_path):
    async with EmbeddedCluster(data_dir=tmp_path, start_time=START) as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs=COMPACT)
        await alter_backoff(client, "2000")
    async with EmbeddedCluster(data_dir=tmp_path, start_time=START) as cluster:
        fill(cluster, "t", 0, 0, 0)
        await asyncio.sleep(2.5)
        assert offsets(cluster, "t") == [1, 2]


async def test_retention_of_compacted_logs():
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", configs={"cleanup.policy": "compact,delete", "retention.ms": str(HOUR)})
        fill(cluster, "t", 2 * HOUR, key=b"old")
        fill(cluster, "t", 0, key=b"new")
        await asyncio.sleep(16)
        assert offsets(cluster, "t") == [1]
        assert cluster.partition("t", 0).log_start_offset == 1


async def test_an_unreadable_log_is_skipped_and_a_full_disk_is_retried(monkeypatch, caplog):
    caplog.set_level(logging.ERROR)
    tries = []

    def fail(log, *_args) -> None:
        tries.append(log.partition)
        raise KafkaStorageError("no space") if log.partition else ValueError("nonsense")

    monkeypatch.setattr(PartitionLog, "clean", fail)
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", 2, configs=COMPACT)
        for index in range(2):
            for _ in range(2):
                put(cluster, b"k", index=index)
                log_of(cluster, "t", index).roll()
        await asyncio.sleep(46)
        assert sorted(tries) == [0, 1, 1, 1]
        assert caplog.text.count("t-0 cannot be cleaned") == 1
        assert caplog.text.count("cleaning t-1 failed") == 3
    caplog.clear()


async def test_compaction_can_be_enabled_and_disabled():
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t")
        fill(cluster, "t", 0, 0, 0)
        await asyncio.sleep(60)
        assert offsets(cluster, "t") == [0, 1, 2]
        controller = controller_of(cluster)
        controller.configure_topic(topic_of(cluster, "t"), COMPACT)
        await asyncio.sleep(16)
        assert offsets(cluster, "t") == [1, 2]
        controller.configure_topic(topic_of(cluster, "t"), {})
        fill(cluster, "t", 0, 0, 0)
        await asyncio.sleep(60)
        assert offsets(cluster, "t") == [1, 2, 3, 4, 5]


async def test_a_cluster_on_disk_cleans_internal_topics(tmp_path):
    async with EmbeddedCluster(start_time=START, data_dir=tmp_path) as cluster:
        controller_of(cluster).offsets_topic()
        log = log_of(cluster, "__consumer_offsets", 0)
        for _ in range(3):
            builder = BatchBuilder()
            builder.append(START, b"k", b"v")
            log.roll()
            append(log, builder.build(), 0, by_coordinator=True)
        await asyncio.sleep(16)
        assert [record.offset for record in read_records(log)] == [1, 2]
