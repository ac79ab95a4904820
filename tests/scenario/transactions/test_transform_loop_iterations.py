"""Something happens to a member that transforms records in transactions, after each iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from asyncgroup import ConsumerGroup, Producer, ProducerConfig
from asyncgroup.errors import ClosedError, ProducerFencedError
from tests.scenario.ends.test_every_loop_iteration import LoopIterations
from tests.scenario.support import now
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.scenario.transactions.transforming import OUT, Copy, all_once, host_of, transforming
from tests.stories.virtual import VirtualEnvironment

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]

ID = "mine"
SETTINGS: dict[str, Any] = {"commit_interval": 0.02, "max_records": 2}
FENCED: dict[str, Any] = {**SETTINGS, "producer_config": ProducerConfig(transactional_id=ID)}


class Story:
    """A member with four partitions that transforms a few records, and something that happens to it."""

    def __init__(self, env: VirtualEnvironment, group: ConsumerGroup, run: asyncio.Task[None]) -> None:
        self.env = env
        self.group = group
        self.run = run

    # each is called at some iteration of the loop, and may return what has to be awaited

    def cancelled(self) -> None:
        self.run.cancel()

    def cancelled_twice(self) -> None:
        self.run.cancel()
        asyncio.get_running_loop().call_later(0.001, self.run.cancel)

    def closed(self) -> Awaitable[Any]:
        return asyncio.create_task(self.group.aclose())

    async def another_member(self) -> None:
        async with transforming(self.env, Copy(self.env), "bob", settings=SETTINGS):
            await self.env.all_committed()
            await asyncio.sleep(20.0)

    async def frozen(self) -> None:
        host = host_of("ann")
        self.env.network.blackhole(host)
        await asyncio.sleep(25.0)
        self.env.network.heal(host)

    def cut(self) -> None:
        self.env.network.cut(host_of("ann"))

    async def group_coordinator_dies(self) -> None:
        await self.restart(self.env.cluster.coordinator("g"))

    async def transaction_coordinator_dies(self) -> None:
        await self.restart(self.env.cluster.transaction_coordinator(self.transactional_id))

    @property
    def transactional_id(self) -> str:
        return next(iter(self.env.cluster.transactions), ID)

    async def restart(self, node: int) -> None:
        await self.env.cluster.stop_node(node)
        await asyncio.sleep(3.0)
        await self.env.cluster.start_node(node)

    def coordinators_move(self) -> None:
        cluster = self.env.cluster
        cluster.move_coordinator("g", cluster.coordinator("g") % 3 + 1)
        if cluster.transactions:
            name = self.transactional_id
            cluster.move_transaction_coordinator(name, cluster.transaction_coordinator(name) % 3 + 1)

    async def fenced(self) -> None:
        async with Producer(self.env.bootstrap_servers, ProducerConfig(transactional_id=ID)):
            pass

    async def topics_change(self) -> None:
        with suppress(ClosedError):  # it comes in one of the last iterations, when the member is closed
            self.group.set_topics(["orders", "more"])


Act: TypeAlias = Callable[[Story], Any]


async def told(protocol: str, iterations: LoopIterations, after: int, act: Act) -> int:
    """Run the story once; return how many iterations it has."""
    async with made_for(protocol, nodes=3) as env:
        env.cluster.create_topic(OUT, 4)
        env.cluster.create_topic("more", 1)
        await env.produce(5, range(4))
        before = iterations.count
        acts: list[Any] = []
        settings = FENCED if act is Story.fenced else SETTINGS
        async with transforming(env, Copy(env), settings=settings, close_timeout=5.0) as (group, run):
            story = Story(env, group, run)
            iterations.after(after, lambda: acts.append(asyncio.ensure_future(_acting(act(story)))))
            finished = asyncio.create_task(env.all_committed())
            await asyncio.wait([run, finished], return_when=asyncio.FIRST_COMPLETED)
            whole = iterations.count - before
            finished.cancel()
            for task in acts:
                await task
            if run.done() and not run.cancelled() and (error := run.exception()) is not None:
                assert act is Story.fenced, repr(error)
                assert isinstance(error, ProducerFencedError)
            await asyncio.sleep(1.0)
            ended_at = now()
            await group.aclose()
            assert now() - ended_at < 8.0, "it closed late"
        async with transforming(env, Copy(env), "eve"):
            await env.produce(1, range(4))
            await all_once(env)
        for task in acts:  # also one that began while the member was closing
            await task
        return whole


async def _acting(result: Any) -> None:
    if result is not None:
        await result


ACTS = [
    Story.cancelled,
    Story.cancelled_twice,
    Story.closed,
    Story.another_member,
    Story.frozen,
    Story.cut,
    Story.group_coordinator_dies,
    Story.transaction_coordinator_dies,
    Story.coordinators_move,
    Story.fenced,
    Story.topics_change,
]


@pytest_asyncio.fixture
async def iterations(monkeypatch: pytest.MonkeyPatch) -> LoopIterations:
    return LoopIterations(monkeypatch)


SOME = 541
"""Every iteration takes half an hour."""


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(SOME, marks=pytest.mark.full),
        pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_iteration(protocol: str, iterations: LoopIterations, act: Act, every: int) -> None:
    """Whatever happens when: no record is lost or transformed twice, and nothing hangs."""
    whole = await told(protocol, iterations, 10**9, act)
    for after in range(1, whole + 1, every):
        try:
            await told(protocol, iterations, after, act)
        except BaseException as error:
            error.add_note(f"after {after} of {whole} iterations")
            raise
