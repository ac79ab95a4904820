"""Random deaths, freezes and faults of members that transform records in transactions: each record's output is there once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from asyncgroup import Batch, ProducerConfig, TransactionOutput
from tests.profiles import long_family
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.scenario.transactions.transforming import OUT, Copy, all_once, host_of, transforming
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.full

MEMBERS = 3
STEPS = 25
SEEDS = 12

ABORTING = ("TRANSACTION_ABORTABLE", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS")
PASSING = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS",
)
CODES = {
    "InitProducerId": PASSING,
    "EndTxn": PASSING,
    "TxnOffsetCommit": (*PASSING[:3], *ABORTING),
    "OffsetFetch": ("UNSTABLE_OFFSET_COMMIT", "COORDINATOR_LOAD_IN_PROGRESS"),
}
"""Errors that brokers return for a while."""


class SlowCopy(Copy):
    """Takes a random time for some batches."""

    def __init__(self, env: VirtualEnvironment, rng: random.Random) -> None:
        super().__init__(env)
        self._random = rng

    async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
        for record in batch:
            await output.enqueue(OUT, record.value, partition=batch.partition)
            if self._random.random() < 0.02:
                await asyncio.sleep(self._random.choice([0.01, 0.3, 2.0, 15.0]))


class RandomRun:
    """Members that come, go, die and freeze; `rng` is the only source of randomness."""

    def __init__(self, env: VirtualEnvironment, seed: int) -> None:
        self.env = env
        self.rng = random.Random(seed)
        self.lives: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self.frozen: set[str] = set()
        self.closed: list[asyncio.Task[None]] = []
        self.dead: list[asyncio.Task[None]] = []
        self._count = 0

    # -- members -----------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        if len(self.lives) < MEMBERS:
            self._count += 1
            name, ending = f"m{self._count}", asyncio.Event()
            self.lives[name] = ending, asyncio.create_task(self._live(name, ending), name=name)

    async def _live(self, name: str, ending: asyncio.Event) -> None:
        rng = self.rng
        settings = {
            "commit_interval": rng.choice([0.0, 0.1, 2.0]),
            "max_records": rng.choice([1, 3, 500]),
            "producer_config": ProducerConfig(transaction_timeout=rng.choice([5.0, 40.0]), linger=0.0),
            "max_failures": 1000,
        }
        config = {"rebalance_timeout": rng.choice([5.0, 20.0]), "close_timeout": 8.0}
        transform = SlowCopy(self.env, rng)
        async with transforming(self.env, transform, name, settings=settings, **config) as (_, run):
            end = asyncio.create_task(ending.wait())
            await asyncio.wait([run, end], return_when=asyncio.FIRST_COMPLETED)
            end.cancel()
            if run.done():
                await run

    def _pick(self) -> str | None:
        names = sorted(self.lives.keys() - self.frozen)
        return self.rng.choice(names) if names else None

    async def close(self) -> None:
        if (name := self._pick()) is not None:
            ending, task = self.lives.pop(name)
            ending.set()
            if self.rng.random() < 0.5:
                await task
            else:
                self.closed.append(task)

    async def kill(self) -> None:
        """Its packets are dropped from now on, whatever its tasks do."""
        if (name := self._pick()) is not None:
            ending, task = self.lives.pop(name)
            self.env.network.blackhole(host_of(name))
            self.env.network.cut(host_of(name))
            ending.set()
            self.dead.append(task)

    async def freeze(self) -> None:
        if (name := self._pick()) is not None:
            self.frozen.add(name)
            self.env.network.blackhole(host_of(name))

    async def thaw(self) -> None:
        if self.frozen:
            name = self.rng.choice(sorted(self.frozen))
            self.frozen.remove(name)
            self.env.network.heal(host_of(name))

    async def cut(self) -> None:
        if (name := self._pick()) is not None:
            self.env.network.cut(host_of(name))

    # -- brokers -----------------------------------------------------------------------------------------------------

    async def produce(self) -> None:
        await self.env.produce(self.rng.randint(1, 20), self.rng.sample(range(4), self.rng.randint(1, 4)))

    async def move_coordinators(self) -> None:
        cluster, rng = self.env.cluster, self.rng
        if rng.random() < 0.5:
            cluster.move_coordinator("g", rng.randint(1, 3))
        elif cluster.transactions:
            cluster.move_transaction_coordinator(rng.choice(sorted(cluster.transactions)), rng.randint(1, 3))

    async def move_leader(self) -> None:
        topic = self.rng.choice(["orders", OUT])
        self.env.cluster.move_leader(topic, self.rng.randrange(4), self.rng.randint(1, 3))

    async def restart_node(self) -> None:
        node = self.rng.randint(1, 3)
        await self.env.cluster.stop_node(node)
        await asyncio.sleep(self.rng.choice([0.1, 2.0, 12.0]))
        await self.env.cluster.start_node(node)

    async def refuse(self) -> None:
        api = self.rng.choice(sorted(CODES))
        fault = self.env.cluster.faults.on(api, times=self.rng.randint(1, 3)).optional()
        fault.error(self.rng.choice(CODES[api]))

    async def lose_response(self) -> None:
        api = self.rng.choice(["Produce", *sorted(CODES)])
        self.env.cluster.faults.on(api).optional().disconnect(self.rng.choice(["before", "after"]))

    # -- the run -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.produce),
            (4, self.join),
            (3, self.kill),
            (2, self.freeze),
            (3, self.thaw),
            (2, self.close),
            (2, self.cut),
            (2, self.move_coordinators),
            (1, self.move_leader),
            (1, self.restart_node),
            (2, self.refuse),
            (2, self.lose_response),
        ]
        weights = [weight for weight, _ in steps]
        for _ in range(STEPS):
            await self.rng.choices(steps, weights)[0][1]()
            await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.5, 3.0, 12.0]))
        await self.produce()
        while self.frozen:
            await self.thaw()
        await self.join()

    async def end(self) -> None:
        """End all members, and raise what one of them raised."""
        for ending, task in self.lives.values():
            ending.set()
            self.closed.append(task)
        await asyncio.wait([*self.dead, *self.closed])
        for task in self.dead:
            task.exception()  # it may have died before it was connected
        for task in self.closed:
            task.result()


@pytest.mark.virtual(max_virtual_time=86_400)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", long_family(range(SEEDS)))
async def test_each_record_is_transformed_once(protocol: str, seed: int) -> None:
    async with made_for(protocol, nodes=3) as env:
        env.cluster.create_topic(OUT, 4)
        story = RandomRun(env, seed)
        try:
            await story.run()
            await all_once(env)
        finally:
            await story.end()
        await all_once(env)
