"""Work queues in processes that are killed: nothing lost, dead letters exact, order per key, and few deliveries again."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from asyncgroup import Consumer, Producer, ProducerConfig, TopicPartition
from asyncgroup.workqueue.copies import DLQ_DELIVERY_COUNT
from tests.real.chaos.processes import KILLS, PARTITIONS, PROTOCOLS, RECORDS, Processes, brokers, names_of
from tests.real.chaos.queue_checker import QueueEvidence, QueueVerdict, judge_queue
from tests.real.chaos.queue_journal import QueueLife, read_queue_life
from tests.real.chaos.queueing import MAX_REDELIVERIES, QueueingSettings, dead_letter_topic, failures_of
from tests.real.support import RunningKafka
from tests.stories.admin import Admin

KEYS_SHARE = 100
"""Records of a key, about."""
BUSY = 5_000
"""Bytes of a journal that has deliveries."""
PROGRESS_LIMIT = 120.0


class QueueStory:
    """A topic and the processes of one queue; one that is killed is replaced by one of the same name."""

    def __init__(
        self, servers: str, admin: Admin, protocol: str, directory: Path, rng: random.Random
    ) -> None:
        self._admin = admin
        self._directory = directory
        self._random = rng
        self._processes = Processes(directory, protocol)
        name = uuid.uuid4().hex[:8]
        self._settings = QueueingSettings(
            servers=servers, group_id=f"queue-{name}", topic=f"work-{name}", journal=""
        )
        self._lives: dict[str, str] = {}  # the present journal of each name
        self.keys: dict[int, bytes] = {}
        """The key of each record, by its number."""
        self.killed: dict[str, float] = {}
        """When processes were killed, by the names of their journals."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._settings.topic, number) for number in range(PARTITIONS)]

    async def write(self, count: int) -> None:
        """Create the topic, and write the numbers up to `count`, each with a random key."""
        await self._admin.create_topic(self._settings.topic, PARTITIONS)
        keys = [b"key-%d" % number for number in range(max(20, count // KEYS_SHARE))]
        self.keys = {number: self._random.choice(keys) for number in range(count)}
        async with Producer(self._settings.servers, ProducerConfig(linger=0.01)) as producer:
            for number, key in self.keys.items():
                await producer.enqueue(self._settings.topic, b"%d" % number, key=key)
            await producer.flush()

    # --- processes --------------------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        """Start a process; one whose name begins with `static` has it as instance id."""
        life = f"{name}-{sum(each.startswith(name) for each in self.killed) + 1}"
        journal = str(self._directory / f"{life}.log")
        settings = replace(self._settings, journal=journal, config=self._processes.config_of(name))
        self._lives[name] = life
        await self._processes.launch(name, "queueing", settings, life)

    async def kill(self, name: str) -> None:
        """SIGKILL, and start a new process."""
        process = self._processes.running[name]
        assert process.returncode is None, self._processes.errors(self._lives[name])
        self.killed[self._lives[name]] = time.monotonic()
        process.kill()
        await process.wait()
        await self.start(name)

    async def storm(self, names: Sequence[str], kills: int) -> None:
        """Kill processes when random shares of the records are committed, and up to a second later."""
        for share in sorted(self._random.uniform(0.02, 0.95) for _ in range(kills)):
            await self.committed(round(share * len(self.keys)))
            await asyncio.sleep(self._random.uniform(0, 1) ** 3)
            await self.kill(self._random.choice(self._victims(names)))

    def _victims(self, names: Sequence[str]) -> Sequence[str]:
        """Return the processes of which one is to be killed: mostly those that handle records already."""
        busy = [
            name for name in names if (self._directory / f"{self._lives[name]}.log").stat().st_size > BUSY
        ]
        return busy if busy and self._random.random() < 0.8 else names

    async def committed(self, count: int) -> None:
        """Wait until the group's committed offsets sum to `count`."""
        found, since = -1, 0.0
        while found < count:
            now = sum((await self._admin.committed(self._settings.group_id, self.partitions)).values())
            if now != found:
                found, since = now, time.monotonic()
            if time.monotonic() > since + PROGRESS_LIMIT:
                errors = [self._processes.errors(life) for life in self._lives.values()]
                raise AssertionError(f"{found} of {count} were committed {PROGRESS_LIMIT} s ago: {errors}")
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """End all processes in order."""
        names = list(self._processes.running)
        await asyncio.gather(*(self._processes.end(name, self._lives[name]) for name in names))

    def kill_all(self) -> None:
        self._processes.kill_all()

    # --- what they did ----------------------------------------------------------------------------------------------------

    def lives(self) -> list[QueueLife]:
        return [read_queue_life(path) for path in sorted(self._directory.glob("*.log"))]

    async def dead_letters(self) -> list[tuple[int, int]]:
        """Return number and delivery count of each record in the dead letter topic."""
        topic = dead_letter_topic(self._settings.topic, self._settings.group_id)
        found: list[tuple[int, int]] = []
        async with Consumer(self._settings.servers) as consumer:
            ends = await consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
            for tp, end in ends.items():
                reader = await consumer.partition(*tp, 0)
                while reader.position < end:
                    batch = await anext(reader.batches())
                    found += [
                        (int(record.value or b"-1"), int(dict(record.headers)[DLQ_DELIVERY_COUNT] or b"-1"))
                        for record in batch
                    ]
        return found

    async def judge(self) -> QueueVerdict:
        evidence = QueueEvidence(
            topic=self._settings.topic,
            keys=self.keys,
            poison=frozenset(number for number in self.keys if failures_of(number) > MAX_REDELIVERIES),
            max_deliveries=MAX_REDELIVERIES + 1,
            ack_group_time=self._settings.ack_group_time,
            dead_letters=await self.dead_letters(),
            killed=self.killed,
        )
        return judge_queue(self.lives(), evidence)


async def run_story(story: QueueStory, names: Sequence[str], count: int, kills: int) -> str:
    """Handle `count` records while processes are killed, and check all promises; return the figures."""
    await story.write(count)
    begun = time.monotonic()
    try:
        await asyncio.gather(*map(story.start, names))
        await story.storm(names, kills)
        await story.committed(count)
        seconds = time.monotonic() - begun
        await story.close()
    finally:
        story.kill_all()
    verdict = await story.judge()
    assert not verdict.problems, "\n".join(verdict.problems)
    assert len(story.killed) == kills
    return (
        f"{count:,} records in {seconds:.0f} s, {kills} kills, {verdict.delivered:,} deliveries; interrupted by a kill: "
        f"{verdict.interrupted:,}; acknowledged, and not committed when killed: {verdict.exposed:,}; of these delivered again: "
        f"{dict(verdict.repeats)}, acknowledged up to {verdict.longest_wait:.3f} s before the kill"
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_three_processes_that_are_killed_twenty_times(
    kafka_at_hand: None, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with brokers(1) as (kafka, admin):
        story = QueueStory(kafka.bootstrap_servers, admin, protocol, tmp_path, random.Random(protocol))
        figures = await run_story(story, names_of(protocol), RECORDS, KILLS)
    with capsys.disabled():
        print(f"\n{protocol}: {figures}")


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_three_processes_that_are_killed(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    """Static members take over their partitions at once; the partitions of the other one are free after its session."""
    admin = Admin(apache_kafka.bootstrap_servers)
    async with admin.cluster:
        rng = random.Random(1)
        story = QueueStory(apache_kafka.bootstrap_servers, admin, "cooperative", tmp_path, rng)
        print(await run_story(story, ["static-a", "static-b", "c"], 4_000, 4))
