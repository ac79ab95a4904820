"""A transactional producer whose caller is cancelled, or which is closed, after each iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition
from asyncgroup.producer import MemoryBudget, Producer
from tests.producer.transactions.support import committed
from tests.profiles import thinned
from tests.scenario.ends.test_every_loop_iteration import LoopIterations

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]

TOPIC = "orders"
CONFIG: dict[str, Any] = {
    "linger": 0.0,
    "retry_backoff": 0.1,
    "transactional_id": "tx",
    "chunking": True,
    "max_chunk_size": 1024,
    "batch_size": 1,
    "buffer_bytes": 1500,
    "max_pending_records": 2,
    "close_timeout": 5.0,
}
OFFSETS = GroupOffsets("g", {TopicPartition("orders", 1): CommittedOffset(5)})


@pytest_asyncio.fixture
async def iterations(monkeypatch: pytest.MonkeyPatch) -> LoopIterations:
    return LoopIterations(monkeypatch)


class Run:
    """Two transactions, each with a value in chunks, plain records and offsets; some callers wait for memory."""

    def __init__(self, cluster: EmbeddedCluster, client: Cluster) -> None:
        self.cluster = cluster
        self.budget = MemoryBudget(1400)
        self.producer = Producer(client, ProducerConfig(**CONFIG), memory=self.budget)
        self.done: list[int] = []
        """The transactions that were committed, by their callers."""
        self.tasks: list[asyncio.Task[Any]] = []

    async def work(self) -> None:
        async with self.producer:
            for number in range(2):
                async with self.producer.transaction():
                    value = b"%d" % number
                    writes = [
                        self.producer.send(TOPIC, value * 2500, partition=0),
                        self.producer.send(TOPIC, value, partition=0),
                        self.producer.send_offsets(OFFSETS),
                    ]
                    tasks = [asyncio.create_task(write) for write in writes]
                    self.tasks += tasks
                    await asyncio.gather(*tasks)
                self.done.append(number)

    def check(self) -> None:
        """Check that a transaction is committed as a whole or not at all, and that nothing is left."""
        found = committed(self.cluster, topic=TOPIC)
        for number in range(2):
            count = sum(1 for value in found if value and value[:1] == b"%d" % number)
            assert count in (0, 4), (number, count)
            if number in self.done:
                assert count == 4
        assert self.producer._inner.memory.used == self.budget.used == 0
        assert not self.budget._inner.listeners
        names = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("Producer")]
        assert not names, names


async def run(iterations: LoopIterations, after: int, act: Callable[[Run, asyncio.Task[None]], Any]) -> int:
    """Run once, and call `act` after that many iterations; return how many there were."""
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 2)
        async with Cluster(cluster.bootstrap_servers, ProducerConfig(**CONFIG)) as client:
            before = iterations.count
            one = Run(cluster, client)
            task = asyncio.create_task(one.work())
            acts: list[Any] = []
            iterations.after(after, lambda: acts.append(act(one, task)))
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, AsyncGroupError), repr(error)
            await asyncio.gather(*one.tasks, return_exceptions=True)
            for running in acts:
                if isinstance(running, asyncio.Task):
                    await running
            count = iterations.count - before
            # an abort that outlived close_timeout is left to the coordinator
            await asyncio.sleep(200.0)
            one.check()
            return count


def cancel(_run: Run, task: asyncio.Task[None]) -> None:
    task.cancel()


def close(run: Run, _task: asyncio.Task[None]) -> asyncio.Task[None] | None:
    return asyncio.create_task(run.producer.aclose()) if run.producer._inner.is_open else None


def close_at_once(run: Run, _task: asyncio.Task[None]) -> asyncio.Task[None] | None:
    return asyncio.create_task(run.producer.aclose(drain=False)) if run.producer._inner.is_open else None


@pytest.mark.full
@pytest.mark.parametrize("act", [cancel, close, close_at_once])
async def test_every_iteration(
    iterations: LoopIterations, act: Callable[[Run, asyncio.Task[None]], Any]
) -> None:
    whole = await run(iterations, 10**9, act)
    assert whole > 50
    for after in thinned(range(1, whole + 1), every=10):
        await run(iterations, after, act)
