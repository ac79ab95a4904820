"""How sessions end by errors and callers (the table "How things end" of the design).

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup import Claim, ErrorCode, Record, Session
from tests.scenario.support import (
    Gate,
    SessionEndHook,
    WorkHandler,
    committed,
    member,
    now,
    running,
    stubborn,
    working,
)
from tests.stories.virtual import VirtualEnvironment

# -- a handler raises ---------------------------------------------------------------------------------------------------


class Boom(Exception):
    """An exception of a user's handler."""


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_handler_raises(env: VirtualEnvironment, how: str):
    """The other handlers finish their current record; finished work is committed; the exception is raised unchanged."""
    gate, ends, error = Gate(1, 1), SessionEndHook(), Boom("no such order")

    async def work(session: Session, claim: Claim, record: Record) -> None:
        if (record.partition, record.offset) == (0, 3):
            await gate.reached.wait()
            raise error
        await gate(session, claim, record)

    handler = WorkHandler(env, work)
    await env.produce(5, [0, 1])
    async with member(env, hooks=(ends,)) as group:
        async with running(getattr(group, how)("orders", handler)) as consuming:
            await handler.until("end 0")
            await asyncio.sleep(
                5.0
            )  # the handler of partition 1 is still working, and the session waits for it
            assert not consuming.done()
            gate.open.set()
            with pytest.raises(Boom) as caught:
                await consuming
        assert caught.value is error
        note = " ".join(error.__notes__)
        assert "orders-0" in note
        assert "offset 3" in note
        assert handler.calls[-3:] == ["end 1", "revoked [0, 1, 2, 3]", "cleanup"]
        assert "record 1@2" not in handler.calls
        assert "cancelled 1" not in handler.calls
        assert committed(env) == {0: 3, 1: 2}
        assert ends.names == ["HandlerFailed"]
        assert ends.causes[0].__cause__ is error


# -- aclose() -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_aclose(ends: SessionEndHook, env: VirtualEnvironment, how: str):
    """Current records are finished and committed, the member leaves at once, the caller returns."""
    async with working(env, how, hooks=(ends,)) as (group, consuming, handler, gate):
        closing = asyncio.create_task(group.aclose())
        await asyncio.sleep(1.0)
        assert not closing.done()
        gate.open.set()
        await closing
        assert await consuming is None
        assert handler.calls[-3:] == ["end 0", "revoked [0, 1, 2, 3]", "cleanup"]
        assert "cancelled 0" not in handler.calls
        assert "record 0@3" not in handler.calls
        assert committed(env) == {0: 3}
        assert env.cluster.group("g").members == {}
        assert ends.names == ["GroupClosed"]


async def test_aclose_cancels_once_after_close_timeout(env: VirtualEnvironment):
    async with working(env, close_timeout=7.0) as (group, consuming, handler, _gate):
        began = now()
        await group.aclose()
        assert now() - began == pytest.approx(7.0 * 0.8), (
            "a fifth is reserved for the steps after the handlers"
        )
        assert handler.calls.count("cancelled 0") == 1
        await consuming
        assert committed(env) == {0: 2}
        assert env.cluster.group("g").members == {}


async def test_aclose_of_a_static_member_does_not_leave_the_group(env: VirtualEnvironment):
    handler = WorkHandler(env)
    async with member(env, group_instance_id="desk-1") as group, running(group.run("orders", handler)):
        await handler.until("assigned [0, 1, 2, 3]")
        await group.aclose()
    assert env.cluster.history.of("LeaveGroup") == []
    assert [m.group_instance_id for m in env.cluster.group("g").members.values()] == ["desk-1"]


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_aclose_while_a_rebalance_drains(ends: SessionEndHook, env: VirtualEnvironment, how: str):
    """The session is already ending for another reason: the caller returns, and the member does not join again."""
    async with working(env, how, hooks=(ends,)) as (group, consuming, handler, gate):
        env.cluster.faults.on("Heartbeat").error(ErrorCode.REBALANCE_IN_PROGRESS)
        await env.bell.until(lambda: handler.sessions[0].ended, "the rebalance seen", env.limit)
        closing = asyncio.create_task(group.aclose())
        await asyncio.sleep(1.0)
        gate.open.set()
        await closing
        assert await consuming is None
        assert ends.names == ["Rebalanced"]
        assert committed(env) == {0: 3}
        assert env.cluster.group("g").members == {}


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_aclose_while_joining(handler: WorkHandler, env: VirtualEnvironment, how: str):
    """A join that waits for other members is cancelled, and the caller returns as from a session."""
    env.cluster.faults.on("JoinGroup", nth=2).hold()
    async with member(env) as group, running(getattr(group, how)("orders", handler)) as consuming:
        await env.bell.until(lambda: len(env.cluster.history.of("JoinGroup")) == 2, "a join", env.limit)
        began = now()
        await group.aclose()
        assert now() == began
        assert await consuming is None
    assert handler.calls == []


# -- the caller is cancelled --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_caller_cancelled(env: VirtualEnvironment, how: str):
    """Handlers are cancelled once, at once; cleanup, commit and leave happen; CancelledError is raised."""
    gate, ends = Gate(0, 2), SessionEndHook()
    handler = WorkHandler(env, gate)
    await env.produce(5, [0])
    async with member(env, hooks=(ends,)) as group:
        async with running(getattr(group, how)("orders", handler)) as consuming:
            await gate.reached.wait()
            began = now()
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
            assert now() == began
        assert handler.calls.count("cancelled 0") == 1
        assert handler.calls[-2:] == ["revoked [0, 1, 2, 3]", "cleanup"]
        assert committed(env) == {0: 2}
        assert env.cluster.group("g").members == {}
        assert ends.names == ["CallerCancelled"]


class CleansUp(WorkHandler):
    """A handler whose cleanup takes some seconds."""

    def __init__(self, env: VirtualEnvironment, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    async def cleanup(self, session: Session) -> None:
        self.note("cleanup")
        await asyncio.sleep(self._seconds)
        self.note("cleaned")


async def test_caller_cancelled_cleanup_is_limited_by_close_timeout(env: VirtualEnvironment):
    """A cleanup that takes longer than close_timeout is cancelled; the commit still happens."""

    handler = CleansUp(env, seconds=1000.0)
    await env.produce(5, [0])
    async with member(env, close_timeout=7.0, auto_commit_interval=3000.0) as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("done 0@4")
            began = now()
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
            assert now() - began == pytest.approx(7.0 * 0.9)
        assert "cleaned" not in handler.calls
        assert committed(env) == {0: 5}
        assert env.cluster.group("g").members == {}


async def test_caller_cancelled_during_cleanup(env: VirtualEnvironment):
    """In a session that is already ending, the caller's cancellation does not cancel cleanup, it only limits its time."""

    handler = CleansUp(env, seconds=3.0)
    await env.produce(5, [0])
    async with member(env, close_timeout=7.0) as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("done 0@4")
            bob = await env.member("bob")
            await handler.until("cleanup")
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
        assert handler.calls[-1] == "cleaned"
        assert committed(env) == {0: 5}
        await bob.leave()


async def test_caller_cancelled_while_no_broker_answers(handler: WorkHandler, env: VirtualEnvironment):
    """Commit and leave together take at most close_timeout."""
    await env.produce(5, [0])
    async with member(env, close_timeout=7.0, auto_commit_interval=3000.0) as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("done 0@4")
            env.network.blackhole("10.2.0.1")
            began = now()
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
            assert now() - began <= 7.0
        assert handler.calls[-1] == "cleanup"
        env.network.cut("10.2.0.1")
        env.network.heal()


async def test_aclose_while_no_broker_answers(handler: WorkHandler, env: VirtualEnvironment):
    """The same for closing: handlers have their time, and the whole close has a limit."""
    await env.produce(5, [0])
    async with (
        member(env, close_timeout=7.0, auto_commit_interval=3000.0) as group,
        running(group.run("orders", handler)) as consuming,
    ):
        await handler.until("done 0@4")
        env.network.blackhole("10.2.0.1")
        began = now()
        await group.aclose()
        assert now() - began <= 7.0
        await consuming
        env.network.cut("10.2.0.1")


async def test_a_handler_that_ignores_its_cancellation(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    """The session waits for it, as its work may have to be completed; the log says what the session waits for."""

    handler = WorkHandler(env, stubborn(100.0))
    await env.produce(1, [2])
    async with member(env) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("record 2@0")
        began = now()
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        assert now() - began == pytest.approx(100.0)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert (
        len(
            [
                text
                for text in warnings
                if "claim orders-2" in text and "was cancelled, but is still running" in text
            ]
        )
        == 3
    )
    assert committed(env) == {2: 1}


# -- leaving ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "times", "warns"),
    [
        (lambda fault: fault.error(ErrorCode.UNKNOWN_MEMBER_ID), 1, False),
        (lambda fault: fault.error(ErrorCode.REBALANCE_IN_PROGRESS), 1, False),
        (lambda fault: fault.error(ErrorCode.GROUP_AUTHORIZATION_FAILED), 1, True),
        # retriable errors are retried while there is time
        (lambda fault: fault.error(ErrorCode.NOT_COORDINATOR), 1, False),
        (lambda fault: fault.error(ErrorCode.NOT_COORDINATOR), 2, False),
        (lambda fault: fault.error(ErrorCode.NOT_COORDINATOR), None, True),
        (lambda fault: fault.disconnect(), 1, False),
        (lambda fault: fault.disconnect(), None, True),
        (lambda fault: fault.drop(), 1, False),
        (lambda fault: fault.drop(), None, True),
    ],
    ids=[
        "unknown member",
        "rebalance",
        "no authorization",
        "moved once",
        "moved twice",
        "moved all the time",
        "cut once",
        "cut all the time",
        "no answer once",
        "no answer all the time",
    ],
)
async def test_leaving_that_fails(
    env: VirtualEnvironment,
    caplog: pytest.LogCaptureFixture,
    fault,
    times: int | None,
    warns: bool,
):
    """Closing continues: the session timeout removes the member later. A log entry, unless the group no longer has it."""
    fault(env.cluster.faults.on("LeaveGroup", times=times))
    handler = WorkHandler(env)
    await env.produce(5, [0])
    async with member(env, close_timeout=5.0) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        began = now()
        await group.aclose()
        assert now() - began <= 5.0
    assert committed(env) == {0: 5}
    warnings = [
        r.getMessage()
        for r in caplog.records
        if r.name == "asyncgroup.group" and r.levelno >= logging.WARNING
    ]
    assert bool(warnings) is warns
