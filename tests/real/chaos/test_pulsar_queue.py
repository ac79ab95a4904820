"""Work queues on Pulsar whose processes, connections and broker are killed: nothing lost, order per key, dead letters exact."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.testing.apache_pulsar import ApachePulsar
from asyncgroup.workqueue.copies import DLQ_DELIVERY_COUNT
from tests.real.chaos.processes import RECORDS, Processes
from tests.real.chaos.pulsar_checker import PulsarVerdict, judge_pulsar_queue
from tests.real.chaos.pulsar_journal import PulsarLife, read_pulsar_life
from tests.real.chaos.pulsar_queueing import RECEIVER_QUEUE, PulsarQueueingSettings
from tests.real.chaos.pulsar_run import Disturbance, PulsarEvidence
from tests.real.chaos.queueing import MAX_REDELIVERIES, failures_of
from tests.stories.proxy import TcpProxy

NAMES = ("a", "b", "c")
PARTITIONS = 3
SUBSCRIPTION = "billing"
ORDERS = {"key_shared": "key", "shared": "nothing", "failover": "partition", "exclusive": "partition"}
KEYS_SHARE = 100
"""Messages of a key, about."""
PROGRESS_LIMIT = 120.0
SETTLE_LIMIT = 60.0
STEP = 0.02
"""Seconds between two groups of messages."""


@dataclass(frozen=True)
class Faults:
    """How often what is broken, at random shares of the completed messages."""

    kills: int = 0
    resets: int = 0
    restarts: int = 0

    def in_turn(self, rng: random.Random) -> list[tuple[float, str]]:
        kinds = ["kill"] * self.kills + ["reset"] * self.resets + ["restart"] * self.restarts
        return sorted((rng.uniform(0.03, 0.95), kind) for kind in kinds)


class Progress:
    """The completed messages, by the journals of all processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.completed: set[int] = set()

    def update(self) -> int:
        """Read the lines that are new; return how many messages are completed."""
        for path in self._directory.glob("*.log"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            lines, _, _ = data.rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + (len(lines) + 1 if lines else 0)
            for line in lines.splitlines():
                words = line.split()
                if words[1] in (b"acked", b"dead"):
                    self.completed.add(int(words[2]))
        return len(self.completed)


class PulsarStory:
    """A topic, its producer, and the processes of one queue, each behind a proxy of its own."""

    def __init__(self, pulsar: ApachePulsar, directory: Path, rng: random.Random, mode: str) -> None:
        name = uuid.uuid4().hex[:8]
        self._pulsar = pulsar
        self._directory = directory
        self._random = rng
        self._namespace = f"public/chaos-{name}"
        self._topic = f"persistent://{self._namespace}/work"
        self._dead_letter_topic = f"{self._topic}-{SUBSCRIPTION}-DLQ"
        self._settings = PulsarQueueingSettings(
            url=pulsar.service_url,
            proxy=0,
            subscription=SUBSCRIPTION,
            topic=self._topic,
            journal="",
            mode=mode,
        )
        self._processes = Processes(directory)
        self._progress = Progress(directory)
        self._lives: dict[str, str] = {}  # the present journal of each name
        self._proxies: dict[str, TcpProxy] = {}
        self.keys: dict[int, bytes] = {}
        """The key of each message, by its number."""
        self.disturbances: list[Disturbance] = []
        self._granted: dict[tuple[str, int], int] = {}
        """When all was quiet: by process and partition, the permits that the broker has of it."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Create the topics: one without a subscription would not keep its messages over a restart."""
        admin = self._pulsar.admin
        await admin.create_namespace(self._namespace)
        await admin.set_policy(self._namespace, "deduplication", value=True)
        await admin.create_partitioned_topic(self._topic, PARTITIONS)
        await admin.create_topic(self._dead_letter_topic)
        await admin.create_subscription(self._topic, SUBSCRIPTION, "earliest")
        await admin.create_subscription(self._dead_letter_topic, "check", "earliest")
        self._proxies = {name: TcpProxy() for name in (*NAMES, "producer")}
        try:
            yield
        finally:
            self._processes.kill_all()
            for proxy in self._proxies.values():
                await proxy.__aexit__()

    @property
    def _address(self) -> tuple[str, int]:
        host, port = self._pulsar.service_url.removeprefix("pulsar://").split(":")
        return host, int(port)

    # --- messages -----------------------------------------------------------------------------------------------------------

    async def write(self, count: int, rate: int) -> None:
        """Send the numbers up to `count`, each with a random key, `rate` a second."""
        keys = [b"key-%d" % number for number in range(max(20, count // KEYS_SHARE))]
        self.keys = {number: self._random.choice(keys) for number in range(count)}
        config = PulsarProducerConfig(
            producer_name="writer", send_timeout=0, key_based_batching=True, batching_max_delay=0.01
        )
        connector = self._proxies["producer"].connect
        async with PulsarClient(self._pulsar.service_url, PulsarConfig(connector=connector)) as client:
            async with PulsarProducer(client, self._topic, config) as producer:
                for number, key in self.keys.items():
                    await producer.enqueue(b"%d" % number, key=key)
                    if number % max(1, int(rate * STEP)) == 0:
                        await asyncio.sleep(STEP)
                await producer.flush()

    async def completed(self, count: int) -> None:
        """Wait until so many messages are acknowledged or dead letters."""
        found, since = -1, 0.0
        while found < count:
            now = self._progress.update()
            if now != found:
                found, since = now, time.monotonic()
            if time.monotonic() > since + PROGRESS_LIMIT:
                missing = sorted(self.keys.keys() - self._progress.completed)[:10]
                errors = [self._processes.errors(life) for life in self._lives.values()]
                raise AssertionError(
                    f"{found} of {count} were completed {PROGRESS_LIMIT} s ago, not {missing}: {errors}, {await self._stats()}"
                )
            await asyncio.sleep(0.05)

    async def dead_letters(self) -> list[tuple[int, int]]:
        """Return number and delivery count of each message in the dead letter topic."""
        topic = self._dead_letter_topic
        entries = (await self._pulsar.admin.internal_stats(topic))["numberOfEntries"]
        found: list[tuple[int, int]] = []
        config = PulsarConsumerConfig(initial_position="earliest")
        async with asyncio.timeout(SETTLE_LIMIT), PulsarClient(self._pulsar.service_url) as client:
            async with client.subscribe(topic, "check", config=config) as consumer:
                while len(found) < entries:
                    message = await consumer.receive()
                    found.append((int(message.value or b"-1"), int(message.properties[DLQ_DELIVERY_COUNT])))
                    consumer.ack(message)
        return found

    # --- processes and faults -----------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        """Start a process."""
        kills = sum(each.kind == "kill" and each.process.startswith(f"{name}-") for each in self.disturbances)
        life = self._lives[name] = f"{name}-{kills + 1}"
        _, port = await self._proxies[name].through(*self._address)
        journal = str(self._directory / f"{life}.log")
        settings = replace(self._settings, journal=journal, proxy=port)
        await self._processes.launch(name, "pulsar_queueing", settings, life)

    async def kill(self, name: str) -> None:
        """SIGKILL, and start a new process."""
        process = self._processes.running[name]
        assert process.returncode is None, self._processes.errors(self._lives[name])
        now = time.monotonic()
        death = Disturbance("kill", self._lives[name], now, now)
        self.disturbances.append(death)
        process.kill()
        await process.wait()
        await self.start(name)
        self.disturbances.remove(death)
        self.disturbances.append(death._replace(end=time.monotonic()))

    def reset(self, name: str) -> None:
        """Reset the connections of a process, or of the producer."""
        now = time.monotonic()
        if self._proxies[name].reset_all():
            self.disturbances.append(Disturbance("reset", name, now, now))

    async def restart(self) -> None:
        """Stop the broker, or kill it, and start it again."""
        is_hard = self._random.random() < 0.5
        begin = time.monotonic()
        await asyncio.to_thread(self._pulsar.kill if is_hard else self._pulsar.stop)
        await asyncio.to_thread(self._pulsar.start)
        self.disturbances.append(Disturbance("outage", "", begin, time.monotonic(), is_hard))

    async def storm(self, faults: Faults, count: int, names: Sequence[str]) -> None:
        """Break things when random shares of the messages are completed."""
        for share, kind in faults.in_turn(self._random):
            await self.completed(round(share * count))
            await asyncio.sleep(self._random.uniform(0, 1) ** 3)
            if kind == "kill":
                await self.kill(self._random.choice(names))
            elif kind == "reset":
                self.reset(self._random.choice([*names, "producer"]))
            else:
                await self.restart()

    async def close(self) -> None:
        """End all processes in order."""
        names = list(self._processes.running)
        await asyncio.gather(*(self._processes.end(name, self._lives[name]) for name in names))

    # --- what they did ------------------------------------------------------------------------------------------------------

    async def _stats(self) -> list[dict[str, Any]]:
        """Return the statistics of the subscription, for each partition."""
        topics = [f"{self._topic}-partition-{number}" for number in range(PARTITIONS)]
        found = await asyncio.gather(*map(self._pulsar.admin.stats, topics))
        return [each["subscriptions"][SUBSCRIPTION] for each in found]

    async def settled(self) -> None:
        """Wait until the broker has all acknowledgements, and each process at each partition the permits of its queue: none is lost."""
        deadline = time.monotonic() + SETTLE_LIMIT
        while True:
            stats = await self._stats()
            consumers = [each for own in stats for each in own["consumers"]]
            permits = [(each["availablePermits"], each["msgOutCounter"]) for each in consumers]
            left = [own["msgBacklog"] for own in stats] + [own["unackedMessages"] for own in stats]
            # one that was started last may not be there yet
            are_all_there = len(permits) == len(self._processes.running) * PARTITIONS
            if not any(left) and are_all_there and all(_is_granted(*each) for each in permits):
                self._granted = {
                    (each["consumerName"], partition): each["availablePermits"]
                    for partition, own in enumerate(stats)
                    for each in own["consumers"]
                }
                return
            assert time.monotonic() < deadline, (
                f"backlog and unacknowledged {left}, permits and deliveries {permits}"
            )
            await asyncio.sleep(0.3)

    def lives(self) -> list[PulsarLife]:
        return [read_pulsar_life(path) for path in sorted(self._directory.glob("*.log"))]

    async def judge(self) -> PulsarVerdict:
        lines = "".join(f"{each}\n" for each in sorted(self.disturbances, key=lambda each: each.begin))
        (self._directory / "disturbances.txt").write_text(lines)
        evidence = PulsarEvidence(
            keys=self.keys,
            poison=frozenset(number for number in self.keys if failures_of(number) > MAX_REDELIVERIES),
            max_deliveries=MAX_REDELIVERIES + 1,
            dead_letters=await self.dead_letters(),
            disturbances=self.disturbances,
            order=ORDERS[self._settings.mode],
        )
        lives = self.lives()
        verdict = judge_pulsar_queue(lives, evidence)
        verdict.problems += self._lost_permits(lives)
        return verdict

    def _lost_permits(self, lives: Sequence[PulsarLife]) -> list[str]:
        """Return where the ledger of a process and the broker differ, after all that has happened to its connections."""
        counted = {(life.name, number): left for life in lives for number, left in life.permits.items()}
        if counted == self._granted:
            return []
        return [f"permits by the processes {counted}, by the broker {self._granted}"]


def _is_granted(permits: int, delivered: int) -> bool:
    """Whether a consumer that is idle has granted its queue; before the first message it counts with the largest ones."""
    # permits are returned when half of them are used
    return RECEIVER_QUEUE // 2 <= permits <= RECEIVER_QUEUE or (permits > 0 and not delivered)


async def run_story(
    story: PulsarStory, faults: Faults, count: int, rate: int, names: Sequence[str] = NAMES
) -> str:
    """Send and handle `count` messages while things break, and check all promises; return the figures."""
    async with story.opened():
        begun = time.monotonic()
        await asyncio.gather(*map(story.start, names))
        writing = start_task(story.write(count, rate))
        try:
            while not story.keys:
                await asyncio.sleep(STEP)
            await story.storm(faults, count, names)
            await writing
            await story.completed(count)
            seconds = time.monotonic() - begun
            await story.settled()
        finally:
            await cancel_and_wait(writing)
        await story.close()
        verdict = await story.judge()
    assert not verdict.problems, "\n".join(verdict.problems)
    return (
        f"{count:,} messages in {seconds:.0f} s, {faults}, {verdict.delivered:,} deliveries, after a completion: "
        f"{dict(verdict.repeats)}; in another process: {verdict.moved:,}; copied twice: {dict(verdict.copied_twice)}; "
        f"counts that began again beyond the limit: {dict(verdict.beyond_limit)}"
    )


@pytest.mark.soak
@pytest.mark.timeout(2400)
async def test_twenty_kills_five_restarts_and_fifty_resets(
    pulsar_to_break: ApachePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = PulsarStory(pulsar_to_break, tmp_path, random.Random(), "key_shared")
    figures = await run_story(story, Faults(kills=20, resets=50, restarts=5), RECORDS, RECORDS // 200)
    with capsys.disabled():
        print(f"\n{figures}")


@pytest.mark.full
async def test_two_kills_a_restart_and_resets(pulsar_to_break: ApachePulsar, tmp_path: Path) -> None:
    story = PulsarStory(pulsar_to_break, tmp_path, random.Random(), "key_shared")
    print(await run_story(story, Faults(kills=2, resets=6, restarts=1), 3_000, 150))


@pytest.mark.full
async def test_failover_goes_on_in_order_at_the_other_process(
    pulsar_to_break: ApachePulsar, tmp_path: Path
) -> None:
    story = PulsarStory(pulsar_to_break, tmp_path, random.Random(), "failover")
    print(await run_story(story, Faults(kills=3, resets=4), 1_500, 150, NAMES[:2]))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mode", "names"), [("shared", NAMES), ("failover", NAMES[:2]), ("exclusive", NAMES[:1])]
)
async def test_other_modes(
    pulsar_to_break: ApachePulsar, tmp_path: Path, mode: str, names: Sequence[str]
) -> None:
    story = PulsarStory(pulsar_to_break, tmp_path, random.Random(), mode)
    print(await run_story(story, Faults(kills=4, resets=8, restarts=2), 4_000, 200, names))
