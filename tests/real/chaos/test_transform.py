"""Consume-transform-produce by processes that are killed, through rebalances and restarts of brokers: exactly once."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Consumer, ConsumerConfig, Producer, ProducerConfig, TopicPartition
from asyncgroup.cluster.coordinators import TRANSACTION
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.chaos.processes import KILLS, PARTITIONS, PROTOCOLS, RECORDS, Processes, brokers, names_of
from tests.real.chaos.transforming import TransformSettings
from tests.real.support import RunningKafka
from tests.stories.admin import Admin

CATCH_UP_LIMIT = 180.0


class Story:
    """A topic, its copy, and the processes that copy it; one that ends is replaced by one of the same name."""

    def __init__(self, servers: str, admin: Admin, protocol: str, directory: Path) -> None:
        self.servers = servers
        self.admin = admin
        name = uuid.uuid4().hex[:8]
        self.source, self.target, self.group_id = f"in-{name}", f"out-{name}", f"copy-{name}"
        self._settings = TransformSettings(
            servers=servers, group_id=self.group_id, source=self.source, target=self.target
        )
        self._processes = Processes(directory, protocol)
        self.counts: dict[str, int] = {}

    def count(self, event: str) -> None:
        """Count an event for the report."""
        self.counts[event] = self.counts.get(event, 0) + 1

    async def create_topics(self) -> None:
        for topic in (self.source, self.target):
            await self.admin.create_topic(topic, PARTITIONS)

    async def start(self, name: str) -> None:
        """Start a member; one whose name begins with `static` has it as instance id."""
        settings = replace(self._settings, config=self._processes.config_of(name))
        await self._processes.launch(name, "transforming", settings, name)

    async def kill(self, name: str) -> None:
        """SIGKILL, and start a new process."""
        process = self._processes.running[name]
        process.kill()
        await process.wait()
        self.count("killed")
        await self.start(name)

    async def close(self, name: str) -> None:
        """End a member in order."""
        await self._processes.end(name, name)

    async def close_all(self) -> None:
        await asyncio.gather(*map(self.close, list(self._processes.running)))

    def kill_all(self) -> None:
        self._processes.kill_all()

    async def produce(self, count: int, rate: float) -> None:
        """Write the numbers up to `count`, about `rate` a second."""
        config = ProducerConfig(linger=0.01)
        async with Producer(self.servers, config) as producer:
            for number in range(count):
                await producer.enqueue(self.source, b"%d" % number, partition=number % PARTITIONS)
                if number % 200 == 199:
                    await asyncio.sleep(200 / rate)

    async def caught_up(self, count: int) -> None:
        """Wait until the group has committed all input."""
        wanted = {
            TopicPartition(self.source, number): len(range(number, count, PARTITIONS))
            for number in range(PARTITIONS)
        }
        found: Any = None
        try:
            async with asyncio.timeout(CATCH_UP_LIMIT):
                while found != wanted:
                    await asyncio.sleep(0.5)
                    found = await self.admin.committed(self.group_id, wanted)
        except TimeoutError:
            raise AssertionError(f"committed {found} of {wanted}") from None

    async def check(self, count: int) -> None:
        """Compare the output with the input: each record once, in order."""
        for number in range(PARTITIONS):
            wanted = [b"%d!" % value for value in range(number, count, PARTITIONS)]
            found = await committed_values(self.servers, TopicPartition(self.target, number))
            assert len(found) == len(wanted), f"{self.target}-{number}: {len(found)} of {len(wanted)}"
            assert found == wanted


async def committed_values(servers: str, tp: TopicPartition) -> list[bytes]:
    """Return the values that a reader with read_committed sees."""
    values: list[bytes] = []
    config = ConsumerConfig(isolation_level="read_committed")
    async with Consumer(servers, config) as consumer:
        ends = await stable_ends(servers, consumer, tp)
        reader = await consumer.partition(*tp, 0)
        async with asyncio.timeout(120):
            while reader.position < ends[tp]:
                try:
                    async with asyncio.timeout(5):
                        batch = await anext(reader.batches())
                except TimeoutError:  # the rest are markers of transactions
                    if reader.lag <= 1:
                        break
                    continue
                values += [record.value or b"" for record in batch]
    return values


async def stable_ends(servers: str, consumer: Consumer, tp: TopicPartition) -> Mapping[TopicPartition, int]:
    """Return the log's end when no transaction is open any more: a killed member may have left one."""
    async with Consumer(servers) as uncommitted, asyncio.timeout(60):
        while (ends := await consumer.end_offsets([tp])) != await uncommitted.end_offsets([tp]):
            await asyncio.sleep(0.5)
        return ends


def three_brokers() -> AbstractAsyncContextManager[tuple[ApacheKafka, Admin]]:
    """Start three nodes that abort transactions soon."""
    abort_soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000}
    return brokers(3, {"min.insync.replicas": 2, **abort_soon})


async def run_story(story: Story, count: int, rate: float, storm: Any) -> None:
    """Produce and run the storm at the same time; then all output is there once."""
    started = asyncio.get_running_loop().time()
    try:
        async with asyncio.TaskGroup() as work:
            work.create_task(story.produce(count, rate))
            work.create_task(storm)
        await story.caught_up(count)
        await story.close_all()
    finally:
        story.kill_all()
    await story.check(count)
    story.counts["seconds"] = round(asyncio.get_running_loop().time() - started)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_three_members_that_are_killed(
    kafka_at_hand: None, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(protocol)
    names = names_of(protocol)

    async def storm(story: Story) -> None:
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.2, 4))
            await story.kill(rng.choice(names))

    async with three_brokers() as (kafka, admin):
        story = Story(kafka.bootstrap_servers, admin, protocol, tmp_path)
        await story.create_topics()
        for name in names:
            await story.start(name)
        await run_story(story, RECORDS, 2000, storm(story))
    with capsys.disabled():
        print(f"\n{protocol}: {RECORDS:,} records once, {story.counts}")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_rebalance_storm_and_restarts_of_coordinators(
    kafka_at_hand: None, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Members join, leave and are killed all the time; the coordinators' brokers are killed and restarted."""
    rng = random.Random(protocol)

    async def members(story: Story) -> None:
        for number in range(20):
            name = f"guest-{number}"
            await story.start(name)
            await asyncio.sleep(rng.uniform(0.5, 2))
            await story.close(name)
            story.count("joined and left")
            if number % 5 == 4:
                await story.kill(rng.choice(["a", "b"]))

    async def brokers(story: Story, kafka: ApacheKafka) -> None:
        for number in range(4):
            await asyncio.sleep(rng.uniform(3, 6))
            if number % 2:
                node = await admin.coordinator(story.group_id)
            else:
                node = await admin.cluster.coordinators.find(f"{story.group_id}-x", TRANSACTION)
            await asyncio.to_thread(kafka.kill, node)
            await asyncio.sleep(rng.uniform(1, 3))
            await asyncio.to_thread(kafka.start_node, node)
            admin.cluster.coordinators.mark_unknown(story.group_id)
            story.count("broker killed")
            await asyncio.sleep(6)

    async def storm(story: Story, kafka: ApacheKafka) -> None:
        async with asyncio.TaskGroup() as work:
            work.create_task(members(story))
            work.create_task(brokers(story, kafka))

    async with three_brokers() as (kafka, admin):
        story = Story(kafka.bootstrap_servers, admin, protocol, tmp_path)
        await story.create_topics()
        for name in ("a", "b", "c"):
            await story.start(name)
        await run_story(story, RECORDS, 2000, storm(story, kafka))
    with capsys.disabled():
        print(f"\n{protocol}: {RECORDS:,} records once, {story.counts}")


@pytest.mark.full
@pytest.mark.timeout(180)
async def test_two_members_one_of_them_killed(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    """A static member is killed twice and starts again: it aborts at once what it left open."""
    admin = Admin(apache_kafka.bootstrap_servers)
    async with admin.cluster:
        story = Story(apache_kafka.bootstrap_servers, admin, "eager", tmp_path)
        await story.create_topics()
        for name in ("a", "static-b"):
            await story.start(name)

        async def storm() -> None:
            for _ in range(2):
                await asyncio.sleep(0.7)
                await story.kill("static-b")

        await run_story(story, 6_000, 4_000, storm())
