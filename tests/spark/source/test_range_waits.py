"""Ranges that wait for others of the same fetch, and logs that seem to end too early; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark.source.errors import DataLossError, SourceError
from asyncgroup.spark.source.executor.worker_cluster import MAX_IDLE_TOPICS
from tests.broker.internals import log_of
from tests.broker.transactional import Writer
from tests.spark.source.reading import TOPIC, by_partition, fill, now, part, worker

pytestmark = pytest.mark.virtual(max_virtual_time=86_400)

LOSS = r"\[KAFKA_DATA_LOSS\.COULD_NOT_READ_OFFSET_RANGE\]"


@pytest.mark.parametrize("count", [1, 40], ids=["alone in an answer", "asked for later"])
async def test_a_range_that_waits_for_others_does_not_time_out(brokers: EmbeddedCluster, count: int) -> None:
    """A response may be filled by large records of its first partition; the others wait for minutes."""
    partitions = range(0, 40, 2)
    brokers.create_partitions(TOPIC, 40)
    for number in partitions:
        brokers.move_leader(TOPIC, number, 1)
        fill(brokers, 1 if number else count, partition=number, per_batch=1, size=300_000)
    brokers.slow_node(1, 5.0)
    async with worker(brokers, poll_timeout=30.0, fetch_bytes=200_000) as one:
        rows = by_partition(
            await one.rows(*(part(0, 1 if number else count, number) for number in partitions))
        )
    assert rows == {number: list(range(1 if number else count)) for number in partitions}
    assert now() > 60


async def test_a_truncated_leader_is_detected_soon(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    async with worker(brokers) as one:
        with pytest.raises(DataLossError, match=LOSS + r".*\[10, 12\).*ends at offset 10"):
            await one.offsets(part(5, 12))
    async with worker(brokers, fail_on_data_loss=False) as one:
        assert await one.offsets(part(5, 12)) == [5, 6, 7, 8, 9]
    assert now() < 30


@pytest.mark.parametrize("fail", [True, False])
async def test_records_of_an_open_transaction_are_not_lost(brokers: EmbeddedCluster, fail: bool) -> None:
    """A range planned with read_uncommitted, a query restarted with read_committed, a transaction that stays open."""
    writer = Writer(log_of(brokers, TOPIC, 0), 1)
    fill(brokers, 3)
    writer.write(b"open")
    fill(brokers, 3)
    config = {"isolation_level": "read_committed"}
    async with worker(brokers, poll_timeout=30.0, fail_on_data_loss=fail, config=config) as one:
        with pytest.raises(SourceError, match=r"\[ASYNCGROUP_NO_PROGRESS\].*\[3, 7\).*open transaction"):
            await one.offsets(part(0, 7))


async def test_records_above_the_high_watermark_are_not_lost(brokers: EmbeddedCluster) -> None:
    """Records are lost only if the leader lacks them: the high watermark may be late by any time."""
    fill(brokers, 10)
    brokers.hold_followers(TOPIC, 0)
    fill(brokers, 10)
    async with worker(brokers, poll_timeout=50.0, fail_on_data_loss=False) as one:
        with pytest.raises(SourceError, match=r"\[ASYNCGROUP_NO_PROGRESS\].*\[10, 20\).*up to offset 20"):
            await one.offsets(part(5, 20))
    assert now() == pytest.approx(50, abs=3)
    brokers.release_followers(TOPIC, 0)


@pytest.mark.parametrize("failure", ["disconnect", "error"])
async def test_errors_while_the_end_is_looked_up(brokers: EmbeddedCluster, failure: str) -> None:
    fill(brokers, 10)
    fault = brokers.faults.on("OffsetForLeaderEpoch", times=3)
    if failure == "disconnect":
        fault.disconnect("before")
    else:
        fault.error("NOT_LEADER_OR_FOLLOWER")
    async with worker(brokers, fail_on_data_loss=False) as one:
        assert await one.offsets(part(5, 12)) == [5, 6, 7, 8, 9]
    assert 10 < now() < 100
    await asyncio.sleep(0)


async def test_a_task_may_read_more_topics_than_a_worker_remembers(brokers: EmbeddedCluster) -> None:
    names = [f"orders-{number}" for number in range(MAX_IDLE_TOPICS + 20)]
    for name in names:
        brokers.create_topic(name, 1)
        fill(brokers, 2, topic=name)
    async with worker(brokers) as one:
        for _ in range(2):
            rows = await one.rows(*(part(0, 2, topic=name) for name in names))
            assert sorted((row["topic"], row["offset"]) for row in rows) == sorted(
                (name, offset) for name in names for offset in range(2)
            )
        assert await one.offsets(part(0, 0), part(1, 2, topic=names[0])) == [1]
        assert len(one.home._topics) == MAX_IDLE_TOPICS
    assert now() < 5
