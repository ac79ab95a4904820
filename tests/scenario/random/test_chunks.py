"""Values in chunks from several producers, some in transactions, to members that come, go and crash: none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from asyncgroup import Claim, Producer, ProducerConfig, Session
from asyncgroup.errors import AsyncGroupError
from tests.profiles import long_family
from tests.scenario.support import WorkHandler, committed, member, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.scenario.transactions.transforming import host_of
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.full

SEEDS = 7
STEPS = 20
PARTITIONS = 2


class Collector(WorkHandler):
    """Keeps the values of each claim, and marks them; `seen` are those of all members."""

    def __init__(self, env: VirtualEnvironment, rng: random.Random, seen: Counter[bytes]) -> None:
        super().__init__(env)
        self._random = rng
        self._seen = seen

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        mine: set[bytes] = set()
        async for record in claim:
            assert record.value is not None
            assert record.value not in mine, "twice in one claim"
            mine.add(record.value)
            await asyncio.sleep(self._random.choice([0.0, 0.0, 0.01, 1.0]))
            self._seen[record.value] += 1
            claim.mark(record)


class RandomRun:
    """Producers and members; `rng` is the only source of randomness."""

    def __init__(self, env: VirtualEnvironment, seed: int) -> None:
        self.env = env
        self.rng = random.Random(seed)
        self.seen: Counter[bytes] = Counter()
        self.written: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.members: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self.writers: list[asyncio.Task[None]] = []
        self.dead: list[asyncio.Task[None]] = []
        self._count = 0

    # -- producers ---------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        self._count += 1
        name = f"w{self._count}"
        self.writers.append(
            asyncio.create_task(self._write(name, random.Random(f"{name} {self.rng.random()}")))
        )

    async def _write(self, name: str, rng: random.Random) -> None:
        in_transaction = rng.random() < 0.4
        config: dict[str, Any] = {"chunking": True, "max_chunk_size": 1024, "linger": 0.0}
        config["buffer_bytes"] = 2048  # a chunk waits for the acknowledgement of the one before
        config |= {"transactional_id": name, "transaction_timeout": 8.0} if in_transaction else {}
        self.env.network.set_latency(rng.choice([0.0, 0.1, 1.0]), host_of(name))
        with self.env.network.source(host_of(name)):
            try:
                async with Producer(
                    self.env.bootstrap_servers, ProducerConfig(**config), rng=rng
                ) as producer:
                    for _ in range(rng.randint(1, 3)):
                        found = {
                            rng.randbytes(rng.choice([10, 1500, 6000])) for _ in range(rng.randint(1, 4))
                        }
                        if not in_transaction:
                            await self._send(producer, found, rng)
                            self.written |= found
                            continue
                        is_aborted = rng.random() < 0.5
                        self.aborted |= found
                        with contextlib.suppress(ZeroDivisionError):
                            async with producer.transaction():
                                await self._send(producer, found, rng)
                                if is_aborted:
                                    raise ZeroDivisionError
                        if not is_aborted:
                            self.aborted -= found
                            self.written |= found
            except AsyncGroupError:
                pass

    async def _send(self, producer: Producer, values: set[bytes], rng: random.Random) -> None:
        async def send(value: bytes) -> None:
            await asyncio.sleep(rng.choice([0.0, 0.01, 1.0]))
            await producer.send("orders", value, partition=rng.randrange(PARTITIONS))

        await asyncio.gather(*map(send, sorted(values)))

    # -- members -----------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        if len(self.members) < 3:
            self._count += 1
            name, ending = f"m{self._count}", asyncio.Event()
            self.members[name] = ending, asyncio.create_task(self._live(name, ending))

    async def _live(self, name: str, ending: asyncio.Event) -> None:
        handler = Collector(self.env, self.rng, self.seen)
        config = {"isolation_level": "read_committed", "chunks": "assemble", "chunk_expiry": 300.0}
        config |= {"max_pending_chunked": 1000, "auto_commit_interval": 0.2, "close_timeout": 8.0}
        async with (
            member(self.env, name, host=host_of(name), **config) as group,
            running(group.run("orders", handler)) as run,
        ):
            end = asyncio.create_task(ending.wait())
            await asyncio.wait([run, end], return_when=asyncio.FIRST_COMPLETED)
            end.cancel()
            if run.done():
                await run

    async def leave(self) -> None:
        if self.members:
            ending, task = self.members.pop(self.rng.choice(sorted(self.members)))
            ending.set()
            await task

    async def kill(self) -> None:
        if self.members:
            name = self.rng.choice(sorted(self.members))
            ending, task = self.members.pop(name)
            self.env.network.blackhole(host_of(name))
            self.env.network.cut(host_of(name))
            ending.set()
            self.dead.append(task)

    async def cut(self) -> None:
        self.env.network.cut()

    async def restart_node(self) -> None:
        node = self.rng.randint(1, 3)
        await self.env.cluster.stop_node(node)
        await asyncio.sleep(self.rng.choice([0.1, 2.0, 12.0]))
        await self.env.cluster.start_node(node)

    async def move_leader(self) -> None:
        self.env.cluster.move_leader("orders", self.rng.randrange(PARTITIONS), self.rng.randint(1, 3))

    async def run(self) -> None:
        steps = [self.write, self.join, self.leave, self.kill, self.cut, self.restart_node, self.move_leader]
        for _ in range(STEPS):
            await self.rng.choices(steps, [10, 5, 1, 2, 2, 1, 2])[0]()
            await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.5, 3.0, 12.0]))
        await self.join()
        await asyncio.gather(*self.writers)

    def all_read(self) -> bool:
        ends = [part.last_stable_offset for part in self.env.cluster.topic("orders").partitions]
        found = committed(self.env)
        return all(not end or found.get(number, 0) == end for number, end in enumerate(ends))


@pytest.mark.virtual(max_virtual_time=86_400)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", long_family(range(SEEDS)))
async def test_no_value_is_lost(protocol: str, seed: int) -> None:
    async with made_for(protocol, nodes=3) as env:
        story = RandomRun(env, seed)
        try:
            await story.run()
            async with asyncio.timeout(env.limit * 2):
                while not story.all_read():
                    await asyncio.sleep(1.0)
        finally:
            for ending, _ in story.members.values():
                ending.set()
            await asyncio.gather(*(task for _, task in story.members.values()))
            await asyncio.gather(*story.dead, return_exceptions=True)  # they may not have been connected
        assert story.written
        assert story.written <= story.seen.keys()
        assert not story.aborted & story.seen.keys()
