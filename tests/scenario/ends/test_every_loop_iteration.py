"""Cancellation, close and topic changes at every iteration of the event loop: after the first, the second, …, the last.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio.from_thread
import pytest
import pytest_asyncio

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Session, in_thread
from asyncgroup.errors import UsageError
from asyncgroup.group.sessions.threads import ThreadClaim
from tests.profiles import thinned
from tests.scenario.support import WorkHandler, running
from tests.stories.virtual import VirtualEnvironment


class LoopIterations:
    """Counts the iterations of the running event loop, and calls functions after a given number of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._loop: Any = asyncio.get_running_loop()
        self._due: dict[int, Callable[[], object]] = {}
        self._once = self._loop._run_once
        monkeypatch.setattr(self._loop, "_run_once", self._iterate)

    def _iterate(self) -> None:
        self.count += 1
        if (call := self._due.pop(self.count, None)) is not None:
            self._loop.call_soon(call)
        self._once()

    def after(self, iterations: int, call: Callable[[], object]) -> None:
        self._due[self.count + iterations] = call

    def cancel(self) -> None:
        self._due.clear()


@pytest_asyncio.fixture
async def iterations(monkeypatch: pytest.MonkeyPatch) -> LoopIterations:
    return LoopIterations(monkeypatch)


class SlowFinally(WorkHandler):
    """A handler whose `finally` awaits, as for closing a file."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        try:
            async for record in claim:
                await asyncio.sleep(0)
                claim.mark(record)
                self.note(f"done {record.partition}@{record.offset}")
        finally:
            await asyncio.sleep(0.01)
            self.note(f"end {claim.partition}")

    def check(self, env: VirtualEnvironment, group_id: str) -> None:
        """Check that calls came in pairs, and that exactly the processed records are committed."""
        assert self.calls.count("setup") == self.calls.count("cleanup")
        assert self.calls.count("assigned [0, 1, 2, 3]") == self.calls.count("revoked [0, 1, 2, 3]")
        assert "lost [0, 1, 2, 3]" not in self.calls
        offsets = env.cluster.group(group_id).offsets
        marks: dict[int, int] = {}
        for call in self.calls:
            if call.startswith("done"):
                partition, offset = map(int, call.removeprefix("done ").split("@"))
                marks[partition] = offset + 1
        committed = {tp.partition: c.offset for tp, c in offsets.items() if c.offset and tp.topic == "orders"}
        assert committed == marks


def group_of(env: VirtualEnvironment, group_id: str) -> ConsumerGroup:
    return ConsumerGroup(
        env.bootstrap_servers, group_id, ConsumerConfig(**env.config("ann", auto_commit_interval=0.05))
    )


async def iterations_until_committed(env: VirtualEnvironment, iterations: LoopIterations) -> int:
    """Return the number of loop iterations until a session has committed everything."""
    handler = SlowFinally(env)
    async with group_of(env, "whole") as group:
        before = iterations.count
        task = asyncio.create_task(group.run("orders", handler))
        await handler.until("done 0@2")
        await handler.until("done 1@2")
        await asyncio.sleep(0.1)
        lasted = iterations.count - before
        task.cancel()
        await asyncio.wait([task])
    return lasted


def tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks()


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("how", ["consume", "run"])
async def test_cancelled(env: VirtualEnvironment, iterations: LoopIterations, how: str, times: int):
    """The cancellation is raised, the member has left, its work is committed, no task is left; the group is usable."""
    await env.produce(3, [0, 1])
    for iteration in thinned(range(1, await iterations_until_committed(env, iterations), 2)):
        handler, group_id = SlowFinally(env), f"g{iteration}"
        before = tasks()
        async with group_of(env, group_id) as group:
            task = asyncio.create_task(getattr(group, how)("orders", handler))
            for once in range(times):
                iterations.after(iteration + 3 * once, task.cancel)
            await asyncio.wait([task], timeout=60.0)
            assert task.cancelled(), f"after {iteration} iterations"
            assert group.health().state == "not consuming"
            assert env.cluster.group(group_id).members == {}
            handler.check(env, group_id)
            again = asyncio.create_task(group.consume("orders", handler))
            await handler.until("done 0@2")
            await handler.until("done 1@2")
            again.cancel()
            await asyncio.wait([again])
        handler.check(env, group_id)
        assert len([call for call in handler.calls if call.startswith("done")]) == 6
        assert tasks() == before


async def test_closed(env: VirtualEnvironment, iterations: LoopIterations):
    await env.produce(3, [0, 1])
    for iteration in thinned(range(1, await iterations_until_committed(env, iterations), 2)):
        handler, group_id = SlowFinally(env), f"g{iteration}"
        before = tasks()
        async with group_of(env, group_id) as group:
            task = asyncio.create_task(group.run("orders", handler))
            closed: list[asyncio.Task[None]] = []
            iterations.after(iteration, lambda: closed.append(asyncio.create_task(group.aclose())))  # noqa: B023  called before the next loop round
            await asyncio.wait([task], timeout=60.0)
            assert task.done(), f"after {iteration} iterations"
            await task
            await closed[0]
            assert group.health().state == "closed"
        handler.check(env, group_id)
        assert env.cluster.group(group_id).members == {}
        assert tasks() == before


@pytest.mark.full
async def test_other_topics(env: VirtualEnvironment, iterations: LoopIterations):
    """The latest topics are used, at any point of the join or the session."""
    env.cluster.create_topic("others", 1)
    await env.produce(3, [0, 1])
    for iteration in thinned(range(2, await iterations_until_committed(env, iterations), 2)):
        handler, group_id = SlowFinally(env), f"g{iteration}"
        async with group_of(env, group_id) as group:
            task = asyncio.create_task(group.run("orders", handler))
            iterations.after(iteration, lambda: group.set_topics(["orders", "others"]))
            await asyncio.sleep(5.0)
            assert group.session is not None
            assert set(group.session.assignment) == {"orders", "others"}, f"after {iteration} iterations"
            task.cancel()
            await asyncio.wait([task])


async def test_cancelled_in_the_pause_between_two_sessions(env: VirtualEnvironment):
    """The member leaves the group, instead of staying until its session times out."""

    async def returns(_session: Session, _claim: Claim) -> None:
        """Return at once."""

    async with group_of(env, "g") as group:
        task = asyncio.create_task(group.run("orders", returns))
        async with asyncio.timeout(60.0):
            while group.health().state != "waiting to join again":
                await asyncio.sleep(0.01)
        assert len(env.cluster.group("g").members) == 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert env.cluster.group("g").members == {}
        assert group.health().state == "not consuming"


@pytest.mark.parametrize("method", ["setup", "on_assigned", "consume_claim", "on_revoked", "cleanup"])
async def test_a_method_that_does_not_take_its_arguments(env: VirtualEnvironment, method: str):
    """It counts as a method that raises: other methods are called, work is committed, a cancellation is raised."""

    async def bad() -> None:
        """A method without parameters."""

    handler = WorkHandler(env)
    setattr(handler, method, bad)
    await env.produce(3, [0])
    async with group_of(env, "g") as group:
        task = asyncio.create_task(group.run("orders", handler))
        if method in ("on_revoked", "cleanup"):
            await handler.until("done 0@2")
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert {tp: c.offset for tp, c in env.cluster.group("g").offsets.items() if c.offset} == {
                ("orders", 0): 3
            }
        else:
            with pytest.raises(TypeError, match="argument") as caught:
                await task
            assert method in " ".join(caught.value.__notes__)
    others = {"on_revoked": "cleanup", "cleanup": "revoked [0, 1, 2, 3]"}
    assert handler.calls[-1] == others.get(method, "cleanup")


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_a_handler_cannot_consume_by_its_own_group(env: VirtualEnvironment, how: str):
    """The call raises at once, as the handler would wait for its own end."""

    async def nested(_session: Session, _claim: Claim) -> None:
        await getattr(group, how)("orders", nested)

    async with group_of(env, "g") as group:
        with pytest.raises(UsageError, match="its own end"):
            await group.run("orders", nested)


async def test_closed_by_a_task_that_a_handler_waits_for(env: VirtualEnvironment):
    """`asyncio.wait_for(group.aclose(), 5)` may create such a task: it and the handler must not deadlock."""
    closed: list[int] = []

    async def closes(_session: Session, claim: Claim) -> None:
        await asyncio.create_task(group.aclose())
        closed.append(claim.partition)
        await claim.wait_ended()

    async with group_of(env, "g") as group:
        async with asyncio.timeout(5.0):
            await group.run("orders", closes)
        assert closed == [0, 1, 2, 3]
    assert env.cluster.group("g").members == {}


async def test_closed_by_a_thread_of_a_handler(env: VirtualEnvironment):
    def closes(_session: Session, claim: ThreadClaim) -> None:
        anyio.from_thread.run(group.aclose)
        assert list(claim) == []

    async with group_of(env, "g") as group:
        async with asyncio.timeout(5.0):
            await group.run("orders", in_thread(closes))
    assert env.cluster.group("g").members == {}


async def test_a_cancelled_waiting_call_does_not_change_topics(handler: WorkHandler, env: VirtualEnvironment):
    """A second `consume()` is cancelled while it waits; set_topics() still applies to the first one."""
    env.cluster.create_topic("others", 1)
    async with group_of(env, "g") as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        async with running(group.consume("orders", WorkHandler(env))):
            await asyncio.sleep(1.0)
        group.set_topics("others")
        await asyncio.sleep(5.0)
        assert group.session is not None
        assert group.session.assignment == {"others": [0]}


async def test_the_first_close_decides_who_leaves(handler: WorkHandler, env: VirtualEnvironment):
    """This holds even while the first close waits for the heartbeat."""
    async with group_of(env, "g") as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        first = asyncio.create_task(group.aclose(leave=False, at_heartbeat=True))
        await asyncio.sleep(0.5)
        await group.aclose()
        await first
    assert len(env.cluster.group("g").members) == 1
