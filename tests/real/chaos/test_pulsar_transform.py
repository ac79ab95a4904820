"""Transactions on Pulsar whose processes, connections and broker are killed: each output is there once, none is lost."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
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
from tests.real.chaos.processes import RECORDS, Processes
from tests.real.chaos.pulsar_transforming import PulsarTransformSettings
from tests.stories.proxy import TcpProxy

NAMES = ("a", "b", "c")
PARTITIONS = 3
SUBSCRIPTION = "shouting"
KEYS = 200
TIMEOUT = 6.0
"""Seconds of a transaction, in which the messages of a killed process wait."""
CATCH_UP_LIMIT = 180.0
READ_LIMIT = 60.0
STEP = 0.02
"""Seconds between two groups of messages."""
STORES_AT_ONCE = {"managedLedgerDefaultMarkDeleteRateLimit": 0}
"""Without it a broker of 4.2.4 that is killed twice may forget commits and acknowledgements, of all clients (apache/pulsar#20150)."""


class TransformStory:
    """A topic, its copy in transactions, and the processes that copy it, each with its own proxy."""

    def __init__(self, pulsar: ApachePulsar, directory: Path, rng: random.Random, kind: str) -> None:
        self._pulsar = pulsar
        self._random = rng
        self._namespace = f"public/transform-{uuid.uuid4().hex[:8]}"
        self._settings = PulsarTransformSettings(
            url=pulsar.service_url,
            proxy=0,
            subscription=SUBSCRIPTION,
            source=f"persistent://{self._namespace}/spoken",
            target=f"persistent://{self._namespace}/shouted",
            kind=kind,
            timeout=TIMEOUT,
        )
        self._processes = Processes(directory)
        self._proxies: dict[str, TcpProxy] = {}
        self.events: Counter[str] = Counter()
        """What was broken."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Create the topics, whose namespace has deduplication, and start the processes."""
        admin, settings = self._pulsar.admin, self._settings
        await admin.create_namespace(self._namespace)
        await admin.set_policy(self._namespace, "deduplication", value=True)
        for topic in (settings.source, settings.target):
            await admin.create_partitioned_topic(topic, PARTITIONS)
            await admin.create_subscription(topic, "check", "earliest")
        await admin.create_subscription(settings.source, SUBSCRIPTION, "earliest")
        async with AsyncExitStack() as stack:
            stack.callback(self._processes.kill_all)
            for name in (*NAMES, "producer"):
                self._proxies[name] = await stack.enter_async_context(TcpProxy())
            await asyncio.gather(*map(self._start, NAMES))
            yield

    async def _start(self, name: str) -> None:
        host, port = self._pulsar.service_url.removeprefix("pulsar://").split(":")
        _, proxy = await self._proxies[name].through(host, int(port))
        await self._processes.launch(name, "pulsar_transforming", replace(self._settings, proxy=proxy), name)

    # --- what is broken -----------------------------------------------------------------------------------------------------

    async def storm(self, kills: int, resets: int, restarts: int) -> None:
        """Break things in a random order; every second time a killed broker is killed again as soon as it has started."""
        kinds = ["kill"] * kills + ["reset"] * resets + ["restart"] * restarts
        self._random.shuffle(kinds)
        for kind in kinds:
            await asyncio.sleep(self._random.uniform(0.1, 3))
            self.events[kind] += 1
            if kind == "kill":
                await self._kill(self._random.choice(NAMES))
            elif kind == "reset":
                self._proxies[self._random.choice([*NAMES, "producer"])].reset_all()
            else:
                for _ in range(2 - self.events[kind] % 2):
                    await asyncio.to_thread(self._pulsar.kill)
                    await asyncio.to_thread(self._pulsar.start)

    async def _kill(self, name: str) -> None:
        process = self._processes.running[name]
        assert process.returncode is None, self._processes.errors(name)
        process.kill()
        await process.wait()
        await self._start(name)

    # --- messages -----------------------------------------------------------------------------------------------------------

    async def write(self, count: int, rate: int) -> None:
        """Send the numbers up to `count`, `rate` a second."""
        config = PulsarProducerConfig(producer_name="writer", send_timeout=0, key_based_batching=True)
        connections = PulsarConfig(connector=self._proxies["producer"].connect)
        async with (
            PulsarClient(self._pulsar.service_url, connections) as client,
            PulsarProducer(client, self._settings.source, config) as producer,
        ):
            for number in range(count):
                await producer.enqueue(b"%d" % number, key=b"key-%d" % (number % KEYS))
                if number % max(1, int(rate * STEP)) == 0:
                    await asyncio.sleep(STEP)
            await producer.flush()

    async def caught_up(self) -> None:
        """Wait until all messages are acknowledged by transactions that have ended."""
        since, last = time.monotonic(), -1
        while (left := sum(each["msgBacklog"] for each in await self._stats())) > 0:
            if left != last:
                since, last = time.monotonic(), left
            if time.monotonic() > since + CATCH_UP_LIMIT:
                errors = [self._processes.errors(name) for name in NAMES]
                raise AssertionError(
                    f"{left} messages were not acknowledged for {CATCH_UP_LIMIT} s: {await self._stats()}, {errors}"
                )
            await asyncio.sleep(0.5)

    async def _stats(self) -> list[dict[str, Any]]:
        """Return the statistics of the subscription, for each partition."""
        topics = [f"{self._settings.source}-partition-{number}" for number in range(PARTITIONS)]
        found = await asyncio.gather(*map(self._pulsar.admin.stats, topics))
        return [each["subscriptions"][SUBSCRIPTION] for each in found]

    async def input(self, count: int) -> Counter[int]:
        """Return how often each number is in the topic that is read."""
        return await self._numbers(self._settings.source, count, b"")

    async def output(self, count: int) -> Counter[int]:
        """Return how often each number is in the output, as its consumers see it."""
        return await self._numbers(self._settings.target, count, b"!")

    async def _numbers(self, topic: str, count: int, suffix: bytes) -> Counter[int]:
        found: Counter[int] = Counter()
        config = PulsarConsumerConfig(initial_position="earliest")
        async with PulsarClient(self._pulsar.service_url) as client:
            async with client.subscribe(topic, "check", config=config) as consumer:
                try:
                    while True:
                        # what is there twice is read as well
                        async with asyncio.timeout(READ_LIMIT if len(found) < count else 2 * TIMEOUT):
                            message = await consumer.receive()
                        found[int((message.value or b"-1").removesuffix(suffix))] += 1
                        consumer.ack(message)
                except TimeoutError:
                    return found

    async def close(self) -> None:
        """End all processes in order."""
        await asyncio.gather(*(self._processes.end(name, name) for name in NAMES))


async def run_story(story: TransformStory, count: int, rate: int, **faults: int) -> str:
    """Write and transform `count` messages while things break; return the figures."""
    async with story.opened():
        begun = time.monotonic()
        writing = start_task(story.write(count, rate))
        try:
            await story.storm(**faults)
            await writing
            await story.caught_up()
        finally:
            await cancel_and_wait(writing)
        seconds = time.monotonic() - begun
        await story.close()
        topics = {"input": await story.input(count), "output": await story.output(count)}
    for name, found in topics.items():
        missing = sorted(set(range(count)) - found.keys())
        twice = {number: times for number, times in found.items() if times > 1}
        assert not missing, f"{len(missing)} are not in the {name}: {missing[:10]}"
        assert not twice, f"{len(twice)} are in the {name} more than once: {dict(list(twice.items())[:10])}"
        assert len(found) == count
    return f"{count:,} messages once in {seconds:.0f} s, {dict(story.events)}"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
@pytest.mark.usefixtures("pulsar_at_hand")
async def test_kills_of_processes_and_of_the_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    async with ApachePulsar(properties=STORES_AT_ONCE) as pulsar:
        story = TransformStory(pulsar, tmp_path, random.Random(), kind)
        figures = await run_story(story, RECORDS // 4, RECORDS // 400, kills=12, resets=20, restarts=5)
    with capsys.disabled():
        print(f"\n{kind}: {figures}")


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_two_kills_of_a_process_one_of_the_broker_and_resets(
    pulsar_to_break: ApachePulsar, tmp_path: Path
) -> None:
    story = TransformStory(pulsar_to_break, tmp_path, random.Random(), "shared")
    print(await run_story(story, 1_500, 150, kills=2, resets=4, restarts=1))
