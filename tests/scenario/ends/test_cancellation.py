"""Cancellation by asyncio, anyio scopes and task groups, and contexts that are left in another task.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import anyio
import pytest
import pytest_asyncio

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Session
from tests.scenario.support import WorkHandler, committed, member, running
from tests.stories.virtual import VirtualEnvironment


class SlowFinally(WorkHandler):
    """A handler whose `finally` awaits, as for closing a file or a database connection."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        try:
            await super().consume_claim(session, claim)
        finally:
            await asyncio.sleep(1.0)
            await anyio.sleep(1.0)
            self.note(f"tidied {claim.partition}")


async def check_clean_end(env: VirtualEnvironment, handler: WorkHandler) -> None:
    """Check that all steps of the end happened once, in order, for any kind of cancellation."""
    assert sorted(call for call in handler.calls if call.startswith("tidied")) == [
        f"tidied {partition}" for partition in range(4)
    ]
    assert [call for call in handler.calls if call.startswith("cancelled")].count("cancelled 0") == 1
    assert handler.calls[-2:] == ["revoked [0, 1, 2, 3]", "cleanup"]
    assert committed(env) == {0: 5}
    assert env.cluster.group("g").members == {}


@pytest_asyncio.fixture
async def handler(env: VirtualEnvironment) -> SlowFinally:
    """Return the handler of five records."""
    await env.produce(5, [0])
    return SlowFinally(env)


# the `finally` blocks of handlers complete, for every kind of cancellation


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_task_cancelled(env: VirtualEnvironment, handler: SlowFinally, how: str):
    async with member(env, auto_commit_interval=3000.0) as group:
        async with running(getattr(group, how)("orders", handler)) as consuming:
            await handler.until("done 0@4")
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
        await check_clean_end(env, handler)


async def test_task_cancelled_again_and_again(env: VirtualEnvironment, handler: SlowFinally):
    """Repeated cancellation: handlers are still cancelled once; commit and leave still happen."""
    async with member(env, auto_commit_interval=3000.0) as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("done 0@4")
            for _ in range(6):
                consuming.cancel()
                await asyncio.wait([consuming], timeout=0.5)
            with pytest.raises(asyncio.CancelledError):
                await consuming
        await check_clean_end(env, handler)


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_move_on_after(env: VirtualEnvironment, handler: SlowFinally, how: str):
    """A cancelled anyio scope cancels every later await of its task again; handlers must run outside of it."""
    async with member(env, auto_commit_interval=3000.0) as group:
        with anyio.move_on_after(5.0) as scope:
            await getattr(group, how)("orders", handler)
        assert scope.cancelled_caught
        await check_clean_end(env, handler)


async def test_fail_after(env: VirtualEnvironment, handler: SlowFinally):
    async with member(env, auto_commit_interval=3000.0) as group:
        with pytest.raises(TimeoutError):
            with anyio.fail_after(5.0):
                await group.run("orders", handler)
        await check_clean_end(env, handler)


async def test_anyio_task_group_cancelled(env: VirtualEnvironment, handler: SlowFinally):
    async with member(env, auto_commit_interval=3000.0) as group:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.run, "orders", handler)
            await handler.until("done 0@4")
            tasks.cancel_scope.cancel()
        await check_clean_end(env, handler)


@pytest.mark.parametrize("kind", ["anyio", "asyncio"])
async def test_a_sibling_in_a_task_group_fails(env: VirtualEnvironment, handler: SlowFinally, kind: str):
    async def sibling() -> None:
        await handler.until("done 0@4")
        raise LookupError("the sibling failed")

    async with member(env, auto_commit_interval=3000.0) as group:
        with pytest.raises(ExceptionGroup) as caught:
            if kind == "anyio":
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(group.run, "orders", handler)
                    tasks.start_soon(sibling)
            else:
                async with asyncio.TaskGroup() as asyncio_tasks:
                    asyncio_tasks.create_task(group.run("orders", handler))
                    asyncio_tasks.create_task(sibling())
        assert [type(error) for error in caught.value.exceptions] == [LookupError]
        await check_clean_end(env, handler)


async def test_the_whole_block_cancelled(env: VirtualEnvironment, handler: SlowFinally):
    """The scope is outside of `async with`: closing completes inside the cancelled scope."""
    with anyio.move_on_after(5.0):
        async with member(env, auto_commit_interval=3000.0) as group:
            await group.run("orders", handler)
    await check_clean_end(env, handler)


async def test_asyncio_timeout(env: VirtualEnvironment, handler: SlowFinally):
    async with member(env, auto_commit_interval=3000.0) as group:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await group.run("orders", handler)
        await check_clean_end(env, handler)


async def test_cancelled_while_joining(env: VirtualEnvironment):
    """A pending join is cancelled, and the member leaves with the id that it has received."""
    env.cluster.faults.on("JoinGroup", nth=2).hold()
    async with member(env) as group, running(group.run("orders", WorkHandler(env))) as consuming:
        await env.bell.until(lambda: len(env.cluster.history.of("JoinGroup")) == 2, "a join", env.limit)
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        (leave,) = env.cluster.history.of("LeaveGroup")
        (first, _) = env.cluster.history.of("JoinGroup")
        assert [m.member_id for m in leave.request.members] == [first.response.member_id]


async def test_cancelled_during_setup(env: VirtualEnvironment):
    class SlowSetup(WorkHandler):
        async def setup(self, session: Session) -> None:
            self.note("setup")
            try:
                await asyncio.sleep(1000.0)
            finally:
                await asyncio.sleep(1.0)
                self.note("setup undone")

    handler = SlowSetup(env)
    async with member(env) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("setup")
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        assert handler.calls[:2] == ["setup", "setup undone"]
        assert handler.calls[-1] == "cleanup"
        assert not any(call.startswith("claim") for call in handler.calls)
        assert env.cluster.group("g").members == {}


async def test_an_exception_of_a_cancelled_handler_is_logged(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    """The caller gets CancelledError; the handler's exception is logged."""

    class Fails(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            self.note(f"claim {claim.partition}")
            try:
                await claim.wait_ended()
            finally:
                if claim.partition == 0:
                    raise LookupError("the file is gone")

    handler = Fails(env)
    async with member(env) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("claim 3")
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
    assert "the file is gone" in caplog.text


# a group may be opened and closed by different tasks


async def test_enter_and_exit_in_different_tasks(env: VirtualEnvironment, handler: SlowFinally):
    config = ConsumerConfig(**env.config("ann", auto_commit_interval=3000.0))
    group = ConsumerGroup(env.bootstrap_servers, "g", config)
    await asyncio.create_task(group.__aenter__())
    async with running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await asyncio.create_task(group.__aexit__(None, None, None))
    assert committed(env) == {0: 5}
    assert env.cluster.group("g").members == {}


async def test_exit_stack_closed_elsewhere(env: VirtualEnvironment):
    """As in the lifespan of web servers: an exit stack is filled in one task and closed in another."""
    handler = SlowFinally(env)
    stack = AsyncExitStack()

    async def start_up() -> list[ConsumerGroup]:
        return [
            await stack.enter_async_context(
                ConsumerGroup(env.bootstrap_servers, "g", ConsumerConfig(**env.config(name)))
            )
            for name in ("ann", "bob")
        ]

    ann, bob = await asyncio.create_task(start_up())
    async with running(ann.run("orders", handler)), running(bob.run("orders", WorkHandler(env))):
        await handler.until("assigned [0, 1]")
        await asyncio.create_task(stack.aclose())
    assert env.cluster.group("g").members == {}


@pytest_asyncio.fixture
async def opened(env: VirtualEnvironment):
    """A group opened and closed by a fixture: pytest-asyncio may run the two halves in different tasks."""
    async with member(env) as group:
        yield group


async def test_group_from_a_fixture(opened: ConsumerGroup, env: VirtualEnvironment):
    handler = WorkHandler(env)
    await env.produce(5, [0])
    with anyio.move_on_after(5.0):
        await opened.run("orders", handler)
    assert committed(env) == {0: 5}


async def test_a_cancelled_scope_between_enter_and_exit(env: VirtualEnvironment):
    """The group keeps no scope open between enter and exit, so one that surrounds both may be cancelled."""
    config = ConsumerConfig(**env.config("ann"))
    group = ConsumerGroup(env.bootstrap_servers, "g", config)
    with anyio.CancelScope() as scope:
        await group.__aenter__()
        scope.cancel()
    handler = WorkHandler(env)
    async with running(group.run("orders", handler)):
        await handler.until("assigned [0, 1, 2, 3]")
        await group.aclose()


# closing from a handler


async def test_aclose_called_by_a_handler(env: VirtualEnvironment):
    """A handler cannot wait for its own end: aclose() ends the session and returns, and `async with` closes the group."""
    group: ConsumerGroup

    async def enough(_session: Session, _claim: Claim, record: object) -> None:
        if handler.calls[-1] == "record 0@2":
            await group.aclose()

    handler = WorkHandler(env, enough)
    await env.produce(5, [0])
    async with member(env) as group:
        await group.run("orders", handler)
        assert handler.calls.count("cancelled 0") == 0
        assert "done 0@2" in handler.calls
        assert "record 0@3" not in handler.calls
        assert committed(env) == {0: 3}
    assert env.cluster.group("g").members == {}


async def test_two_closers(env: VirtualEnvironment):
    handler = SlowFinally(env)
    async with member(env) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("assigned [0, 1, 2, 3]")
        await asyncio.gather(group.aclose(), group.aclose())
        await consuming
        await group.aclose()


async def test_a_second_consume_waits_for_the_first(env: VirtualEnvironment):
    first, second = WorkHandler(env), WorkHandler(env)
    async with (
        member(env) as group,
        running(group.consume("orders", first)) as one,
        running(group.consume("orders", second)) as two,
    ):
        await first.until("assigned [0, 1, 2, 3]")
        await asyncio.sleep(30.0)
        assert second.calls == []
        one.cancel()
        await second.until("assigned [0, 1, 2, 3]")
        await group.aclose()
        await two
