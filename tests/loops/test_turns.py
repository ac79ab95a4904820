"""Loops over records that never wait give the event loop a turn every few milliseconds, on each kind of event loop.

They read the time of the event loop within one turn, so it must not be the time at which the turn began. uvloop's is not:
each call of `time()` reads the clock (`_time` in its `loop.pyx`), in steps of a millisecond.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Producer, Session
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.workqueue import Delivery, WorkQueue
from tests.loops.stories import LIMIT, reading

RECORDS: Final = 250
"""Fewer than those after which a reader yields because of what it has decoded (`TURN_BYTES`)."""
SECONDS: Final = 0.0004
"""CPU time for each record: together ten times as long as a turn may take."""


class Turns:
    """Counts the turns of the event loop between the first and the last record."""

    def __init__(self, records: int = RECORDS) -> None:
        self.turns = 0
        self.left = records
        self.done = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _turn(self) -> None:
        if not self.done.is_set():
            self.turns += 1
            self._loop.call_soon(self._turn)

    def work(self, seconds: float = SECONDS) -> None:
        """Work on a record without waiting."""
        if not self.turns:
            self._turn()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        self.left -= 1
        if not self.left:
            self.done.set()


async def claim(cluster: EmbeddedCluster, turns: Turns) -> None:
    async def handle(_session: Session, claim: Claim) -> None:
        async for _ in claim:
            turns.work()

    await _consume(cluster, turns, handle)


async def batches(cluster: EmbeddedCluster, turns: Turns) -> None:
    async def handle(_session: Session, claim: Claim) -> None:
        async for batch in claim.batches(max_records=1):
            for _ in batch:
                turns.work()

    await _consume(cluster, turns, handle)


async def _consume(cluster: EmbeddedCluster, turns: Turns, handle: Any) -> None:
    async with reading(cluster, handle):
        await turns.done.wait()


async def merged(cluster: EmbeddedCluster, turns: Turns) -> None:
    config = ConsumerConfig(auto_offset_reset="earliest")
    async with ConsumerGroup(cluster.bootstrap_servers, "g", config) as group:
        async for _ in group.records("t"):
            turns.work()
            if turns.done.is_set():
                break


async def deliveries(cluster: EmbeddedCluster, turns: Turns) -> None:
    async with WorkQueue(cluster.bootstrap_servers, "q", "t", initial_position="earliest") as queue:
        async for delivery in queue:
            turns.work()
            await delivery.ack()
            if turns.done.is_set():
                break


async def workers(cluster: EmbeddedCluster, turns: Turns) -> None:
    async def handle(_delivery: Delivery) -> None:
        turns.work()

    async with WorkQueue(cluster.bootstrap_servers, "q", "t", initial_position="earliest") as queue:
        running = asyncio.create_task(queue.run(handle))
        await turns.done.wait()
        await queue.aclose()
        await running


async def enqueue(cluster: EmbeddedCluster, turns: Turns) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        for number in range(RECORDS):
            await producer.enqueue("t", b"%d" % number)
            turns.work()
        await producer.flush()


READERS: Final[dict[str, Callable[[EmbeddedCluster, Turns], Awaitable[None]]]] = {
    function.__name__: function for function in (claim, batches, merged, deliveries, workers, enqueue)
}


QUICK: Final = ("claim", "workers")
"""Those that the quick profile has."""


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in READERS]
)
async def test_turns(name: str) -> None:
    """Ten are due, or more; on a busy machine the work takes longer, and there are more."""
    async with asyncio.timeout(LIMIT), EmbeddedCluster(topics={"t": 1}) as cluster:
        if name != "enqueue":
            for number in range(RECORDS):
                cluster.produce("t", b"%d" % number, partition=0)
        turns = Turns()
        await READERS[name](cluster, turns)
        assert turns.turns >= 7


@pytest.mark.full
@pytest.mark.asyncio(loop_factories=["real"])
@pytest.mark.parametrize("name", READERS)
async def test_turns_on_asyncio(name: str) -> None:
    await test_turns(name)
