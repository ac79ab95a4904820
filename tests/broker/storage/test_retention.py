"""Retention and compaction in a cluster, by the loop's clock, and what consumers see of them."""

from __future__ import annotations

import asyncio
import random

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition as AioTopicPartition
from confluent_kafka import Consumer as ConfluentConsumer, TopicPartition as ConfluentTopicPartition

from asyncgroup import Consumer, ConsumerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.groups.shared.requests import OffsetAndMetadata
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.broker.groups.store.offsets_topic import OffsetsTopic
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append, batch
from tests.broker.client import connect
from tests.broker.harness import FakeTimers
from tests.broker.internals import controller_of, log_of, topic_of, transactions_of
from tests.broker.requests import fetch, partitions_of
from tests.broker.transactional import Writer

START = 1_700_000_000_000
HOUR = 3_600_000


virtually = pytest.mark.virtual(max_virtual_time=None)


def fill(cluster: EmbeddedCluster, topic: str, *ages: int, key: bytes = b"k") -> None:
    """Append a record of each age (ms before START), each in its own segment."""
    log = log_of(cluster, topic, 0)
    for number, age in enumerate(ages):
        builder = BatchBuilder()
        builder.append(START - age, key, b"%d" % number)
        log.roll()
        append(log, builder.build(), 0)


def offsets(cluster: EmbeddedCluster, topic: str) -> list[int]:
    return [record.offset for record in cluster.records(topic)]


@virtually
async def test_old_records_are_deleted(tmp_path):
    for options in ({}, {"data_dir": tmp_path}):
        async with EmbeddedCluster(start_time=START, **options) as cluster:
            cluster.create_topic("t", configs={"retention.ms": str(HOUR)})
            fill(cluster, "t", 2 * HOUR, HOUR // 2, 0)
            await asyncio.sleep(299)
            assert offsets(cluster, "t") == [0, 1, 2]
            await asyncio.sleep(2)
            assert offsets(cluster, "t") == [1, 2]
            await asyncio.sleep(2100)
            assert offsets(cluster, "t") == [2]
            await asyncio.sleep(3600)
            assert offsets(cluster, "t") == []
            assert cluster.partition("t", 0).log_start_offset == 3


@virtually
async def test_in_memory_a_topic_without_retention_settings_is_kept():
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t")
        cluster.create_topic("other", configs={"retention.bytes": "1"})
        fill(cluster, "t", 100 * 24 * HOUR)
        await asyncio.sleep(30 * 24 * 3600)
        assert offsets(cluster, "t") == [0]
        cluster.apply_retention()
        assert offsets(cluster, "t") == []


@virtually
async def test_on_disk_the_default_retention_is_seven_days(tmp_path):
    async with EmbeddedCluster(start_time=START, data_dir=tmp_path) as cluster:
        cluster.create_topic("t")
        fill(cluster, "t", 6 * 24 * HOUR)
        await asyncio.sleep(23 * 3600)
        assert offsets(cluster, "t") == [0]
        await asyncio.sleep(2 * 3600)
        assert offsets(cluster, "t") == []


@virtually
@pytest.mark.parametrize("transactional_id", ["retention", "cleaner"])
async def test_a_transactional_id_with_the_name_of_a_timer(transactional_id):
    async with EmbeddedCluster(start_time=START) as cluster:
        cluster.create_topic("t", configs={"retention.ms": str(HOUR)})
        cluster.create_topic("written")
        transactions = transactions_of(cluster)
        producer = transactions.init_producer_id(transactional_id, 60.0).producer
        assert transactions.add_partitions(transactional_id, producer, [TopicPartition("written", 0)]) == 0
        assert transactions.end(transactional_id, producer, commit=True).error == 0
        fill(cluster, "t", 2 * HOUR)
        await asyncio.sleep(301)
        assert offsets(cluster, "t") == []


@virtually
async def test_settings_can_be_changed_later():
    async with EmbeddedCluster(start_time=START, retention_check_interval=10) as cluster:
        cluster.create_topic("t")
        fill(cluster, "t", HOUR)
        controller = controller_of(cluster)
        controller.configure_topic(topic_of(cluster, "t"), {"retention.ms": "1000"})
        await asyncio.sleep(11)
        assert offsets(cluster, "t") == []


@virtually
async def test_a_parked_fetch_is_answered_when_its_offset_is_deleted():
    async with EmbeddedCluster(start_time=START) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        fill(cluster, "t", HOUR)
        request = fetch(cluster, 0, min_bytes=1 << 20, max_wait_ms=60_000)
        pending = asyncio.create_task(client.ask(request))
        await asyncio.sleep(1)
        cluster.apply_retention()
        await asyncio.sleep(1)
        assert not pending.done()
        topic_of(cluster, "t").configure({"retention.ms": "1"})
        cluster.apply_retention()
        answer = partitions_of(await pending)
        assert answer[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@virtually
async def test_retention_goes_on_after_a_storage_error(monkeypatch):
    async with EmbeddedCluster(start_time=START) as cluster:
        for name in ("one", "two"):
            cluster.create_topic(name, configs={"retention.ms": "1"})
            fill(cluster, name, HOUR)

        def broken(*_):
            raise KafkaStorageError("no")

        monkeypatch.setattr(log_of(cluster, "one", 0), "delete_old_segments", broken)
        await asyncio.sleep(400)
        assert offsets(cluster, "one") == [0]
        assert offsets(cluster, "two") == []


@virtually
async def test_compaction_goes_on_after_a_corrupt_batch():
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "100"}
    async with EmbeddedCluster(start_time=START) as cluster:
        for name in ("one", "two"):
            cluster.create_topic(name, configs=configs)
            fill(cluster, name, 0, 0, 0)
        log = log_of(cluster, "one", 0)
        log.segments.batch_index.batches[0].chunk.data[61] = 0x7F  # the length of the first record
        await asyncio.sleep(400)
        assert log.size == 3 * log.segments.batch_index.batches[0].size
        assert offsets(cluster, "two") == [1, 2]


@virtually
async def test_unreplicated_records_are_not_deleted():
    async with EmbeddedCluster(2, start_time=START) as cluster:
        cluster.create_topic("t", 1, 2)
        fill(cluster, "t", HOUR, HOUR)
        cluster.hold_followers("t", 0)
        fill(cluster, "t", HOUR, HOUR)
        log = log_of(cluster, "t", 0)
        assert log.delete_old_segments(START, 1000, -1) == 2
        assert (log.start_offset, log.high_watermark, log.end_offset) == (2, 2, 4)
        assert log.delete_old_segments(START, -1, 0) == 0


# -- compaction of the offsets topic---------------------------------------------------------------------------


class Offsets:
    """A coordinator's store whose log is compacted when it reaches 5000 bytes."""

    def __init__(self) -> None:
        self.controller = Controller(
            [1], random.Random(1), default_partitions=1, default_replication_factor=1
        )
        self.partition = self.controller.offsets_topic().partitions[0]
        self.partition.leader = 1
        self.topic = OffsetsTopic(
            1, self.controller, lambda _partition: None, lambda: START, compacted_bytes=5000
        )
        self.store = self.new_store()
        self.store.load(0)

    def new_store(self) -> OffsetStore:
        return OffsetStore(self.topic, FakeTimers(), lambda _group: 0, lambda: START)

    def commit(self, group: str, partition: int, offset: int) -> None:
        errors: list[ErrorCode] = []
        self.store.write_offsets(
            group, {TopicPartition("t", partition): OffsetAndMetadata(offset, -1, "")}, errors.append
        )
        assert errors == [ErrorCode.NONE]


def test_the_offsets_log_stays_small():
    offsets = Offsets()
    largest = 0
    for number in range(3000):
        offsets.commit(f"g{number % 3}", number % 7, number)
        largest = max(largest, offsets.partition.log.size)
    assert 4000 < largest <= 5000
    again = offsets.new_store()
    again.load(0)
    for group in ("g0", "g1", "g2"):
        assert again.offsets(group) == offsets.store.offsets(group)
        assert len(again.offsets(group)) == 7


def test_a_large_offsets_log_is_not_compacted_too_often(monkeypatch):
    offsets = Offsets()
    compact, calls = offsets.partition.log.compact, []
    monkeypatch.setattr(offsets.partition.log, "compact", lambda *args: calls.append(compact(*args)))
    for number in range(1000):
        offsets.commit(f"g{number % 100}", 0, number)
    assert 5000 < offsets.partition.log.size < 50_000
    assert 3 < len(calls) < 20


def test_commits_succeed_if_compaction_fails(monkeypatch):
    def broken(*_args, **_options):
        raise KafkaStorageError("no")

    offsets = Offsets()
    monkeypatch.setattr(offsets.partition.log, "compact", broken)
    for number in range(300):
        offsets.commit("g", 0, number)
    assert offsets.partition.log.size > 5300
    assert [committed.offset for committed in offsets.store.offsets("g").values()] == [299]


# -- clients and logs with offset gaps -------------------------------------------------------------------------


def compacted(cluster: EmbeddedCluster) -> list[int]:
    """Make a compacted log with gaps, empty batches, markers and an aborted end; return the offsets left."""
    cluster.create_topic("t")
    log = log_of(cluster, "t", 0)
    writer = Writer(log, 1)
    for number in range(5):
        append(
            log,
            batch(b"%d" % number, b"%d" % number, codec=["none", "gzip", "lz4", "snappy", "zstd"][number]),
            0,
        )
    writer.write(b"committed")
    writer.commit()
    writer.write(b"aborted")
    writer.abort()
    append(log, batch(b"last"), 0)
    writer.write(b"aborted")
    writer.abort()
    log.compact(2000, 1000)
    return [record.offset for record in read_records(log)]


@pytest.mark.real
@pytest.mark.parametrize("on_disk", [False, True])
async def test_clients_skip_gaps(tmp_path, on_disk):
    async with EmbeddedCluster(data_dir=tmp_path if on_disk else None) as cluster:
        wanted = compacted(cluster)
        end = cluster.partition("t", 0).log_end_offset
        assert wanted == [14]
        fill(cluster, "t", 0)
        servers = cluster.bootstrap_servers
        async with Consumer(servers, ConsumerConfig(isolation_level="read_committed")) as reader:
            ours = await reader.partition("t", 0, 0)
            assert [(await anext(ours)).offset for _ in range(2)] == [14, end]
        theirs = AIOKafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
        await theirs.start()
        theirs.assign([AioTopicPartition("t", 0)])
        theirs.seek(AioTopicPartition("t", 0), 0)
        assert [(await theirs.getone()).offset for _ in range(2)] == [14, end]
        await theirs.stop()
        assert await asyncio.to_thread(read_confluent, servers) == [14, end]


def read_confluent(servers: str) -> list[int | None]:
    consumer = ConfluentConsumer(
        {"bootstrap.servers": servers, "group.id": "g", "isolation.level": "read_committed"}
    )
    consumer.assign([ConfluentTopicPartition("t", 0, 0)])
    found = [consumer.poll(10) for _ in range(2)]
    consumer.close()
    return [None if message is None else message.offset() for message in found]
