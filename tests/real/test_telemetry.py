"""Metrics and probes on a real Kafka: what a member counts beside what the brokers know, and an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from uuid import uuid4

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Producer, Session, TopicPartition
from asyncgroup.admin import Admin
from asyncgroup.offsets import CommittedOffset
from asyncgroup.telemetry import ClientMetrics
from asyncgroup.telemetry.probes import live, ready
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.support import RunningKafka


async def until(condition: Callable[[], object], limit: float = 60.0) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.05)


class Commits:
    """A hook that knows when all records of one partition are committed."""

    def __init__(self, tp: TopicPartition, end: int) -> None:
        self.all_of_one = asyncio.Event()
        self._tp, self._end = tp, end

    def on_commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, Exception] | None,
    ) -> None:
        committed = offsets.get(self._tp)
        if not errors and committed is not None and committed.offset == self._end:
            self.all_of_one.set()


async def test_a_member_counts_what_the_brokers_know(apache_kafka: RunningKafka) -> None:
    topic = group_id = f"metrics-{uuid4().hex[:8]}"
    servers, metrics = apache_kafka.bootstrap_servers, ClientMetrics(partitions=True)
    stopped = asyncio.Event()

    async def some(session: Session, claim: Claim) -> None:
        """Read and commit 30 records of partition 0, and all of partition 1."""
        async for record in claim:
            claim.mark(record)
            if (record.partition, record.offset) == (0, 29):
                await session.commit()
                stopped.set()
                await claim.wait_ended()

    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 2})).raise_first()
        async with Producer(servers, hooks=[metrics]) as producer:
            sends = [producer.send(topic, b"x" * 100, partition=n % 2) for n in range(100)]
            await asyncio.gather(*sends)
        config = ConsumerConfig(auto_offset_reset="earliest", auto_commit_interval=0.2)
        commits = Commits(TopicPartition(topic, 1), 50)
        async with ConsumerGroup(servers, group_id, config, hooks=[metrics, commits]) as group:
            running = asyncio.create_task(group.run(topic, some))
            await asyncio.wait_for(stopped.wait(), 60)
            await until(lambda: metrics.read().numbers["records_consumed_total"].get((group_id, topic)) == 80)
            await asyncio.wait_for(commits.all_of_one.wait(), 60)
            readings = metrics.read()
            (known,) = (await admin.lag([group_id])).raise_first().values()
            assert {
                TopicPartition(topic, int(partition)): lag
                for (_, topic, partition), lag in readings.numbers["lag"].items()
            } == {tp: each.lag for tp, each in known.partitions.items()}
            assert (known.lag_sum, known.lag_max) == (20, 20)
            for name in ("lag_sum", "lag_max"):
                assert readings.numbers[name][group_id,] == 20
            assert readings.numbers["records_sent_total"][topic,] == 100
            assert readings.numbers["assigned_partitions"][group_id,] == 2
            assert readings.numbers["healthy"][group_id,] == 1
            assert (
                1
                <= readings.numbers["commits_total"][group_id,]
                == readings.histograms["commit_seconds"][()].count
            )
            assert live([group]).passed
            assert ready([group]).passed
            await group.aclose()
            await running
        size = readings.numbers["bytes_sent_total"][topic,]
        consumed = metrics.read().numbers["bytes_consumed_total"][group_id, topic]
        assert 0 < consumed <= size


@pytest.mark.full
async def test_a_broker_that_hangs_restarts_no_process(kafka_to_break: ApacheKafka) -> None:
    topic = group_id = f"hangs-{uuid4().hex[:8]}"
    servers, metrics, was_live = kafka_to_break.bootstrap_servers, ClientMetrics(), list[bool]()
    config = ConsumerConfig(auto_offset_reset="earliest", session_timeout=6.0, heartbeat_interval=1.0)

    async def mark_all(session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)

    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 1})).raise_first()
    async with ConsumerGroup(servers, group_id, config, hooks=[metrics]) as group:
        running = asyncio.create_task(group.run(topic, mark_all))

        def is_ready() -> bool:
            was_live.append(live([group]).passed)
            return ready([group]).passed

        await until(is_ready)
        kafka_to_break.suspend(1)
        try:
            await until(lambda: not is_ready(), 30)
            for _ in range(50):
                assert not is_ready()
                await asyncio.sleep(0.1)
            assert metrics.read().numbers["healthy"][group_id,] == 0
        finally:
            kafka_to_break.resume(1)
        await until(is_ready)
        assert all(was_live)
        await group.aclose()
        await running
