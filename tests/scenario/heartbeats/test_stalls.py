"""Each stall of a member is reported: by one log line, by one call of `on_member_stalled`, and in `health()`.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

import pytest
import pytest_asyncio

from asyncgroup import Session
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.group.liveness.stalls import LONG_JOIN, UNKNOWN_COORDINATOR
from tests.scenario.support import WorkHandler, member, now, running, working
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1) as environment:
        yield environment


JOINS: Final[Mapping[str, str]] = {
    "eager": "JoinGroup",
    "cooperative": "JoinGroup",
    "consumer": "ConsumerGroupHeartbeat",
}
"""The request that joins, by the name of the protocol."""

HEARTBEATS: Final[Mapping[str, str]] = {**JOINS, "eager": "Heartbeat", "cooperative": "Heartbeat"}
"""The request that stays in the group, by the name of the protocol."""


def join_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines about long joins."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "the join is not complete" in record.getMessage()
    ]


class StallHook:
    """A hook that keeps the calls of `on_member_stalled`, with their times."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, str]] = []
        self.times: list[float] = []

    def on_member_stalled(self, group_id: str, kind: str, seconds: float, text: str) -> None:
        assert group_id == "g"
        self.seen.append((kind, seconds, text))
        self.times.append(now())


async def test_a_join_that_takes_long(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    hook = StallHook()
    async with working(env) as (_, _, _, gate), member(env, "bob", hooks=(hook,)) as other:
        began, handler = now(), WorkHandler(env)
        async with running(other.run("orders", handler)):
            await asyncio.sleep(LONG_JOIN + 5)
            ((kind, seconds, text),) = hook.seen
            assert (kind, seconds) == ("join", LONG_JOIN)
            assert text.endswith("the join is not complete after 10.0 s: it waits for all members to join")
            assert hook.times == [pytest.approx(began + LONG_JOIN, abs=0.5)]
            assert [line for line in caplog.messages if "the join is not complete" in line] == [text]
            waits_for = other.health().waits_for
            assert waits_for is not None
            assert "the group to complete the join: 1" in waits_for
            gate.open.set()
            await handler.until("setup")
    assert len(hook.seen) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_join_that_is_refused_for_long(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once for each join, whatever the number of attempts, although their errors do not count as failures."""
    hook, limit = StallHook(), 40.0
    async with made_for(protocol) as env:
        handler = WorkHandler(env)
        async with (
            member(env, hooks=(hook,), rebalance_timeout=limit - 5.0) as group,
            running(group.run("orders", handler)),
        ):
            for sessions in (1, 2):
                if sessions == 2:  # the last session is lost, and the next join is refused
                    env.cluster.faults.on(HEARTBEATS[protocol], times=2).error("UNKNOWN_MEMBER_ID")
                    await env.bell.until(lambda: handler.sessions[0].ended, "the loss", env.limit)
                fault = env.cluster.faults.on(JOINS[protocol], times=None).error(
                    "COORDINATOR_LOAD_IN_PROGRESS"
                )
                began = now()
                await asyncio.sleep(limit - 5.0)
                health = group.health()
                assert health.waits_for is not None
                assert "since it began to join" in health.waits_for
                await asyncio.sleep(100.0)
                health = group.health()
                assert not health.is_healthy
                assert [text for text in health.problems if "COORDINATOR_LOAD_IN_PROGRESS" in text]
                assert any(text.startswith("joining for 13") for text in health.problems), health.problems
                assert [kind for kind, _, _ in hook.seen] == ["join"] * sessions
                _, seconds, text = hook.seen[-1]
                assert seconds == pytest.approx(LONG_JOIN)
                assert "COORDINATOR_LOAD_IN_PROGRESS" in text
                assert hook.times[-1] == pytest.approx(began + LONG_JOIN, abs=2.5)
                assert join_warnings(caplog)[-1] == text
                assert len(join_warnings(caplog)) == sessions
                fault.cancel()
                await handler.until("setup", times=sessions)
                await env.bell.until(lambda: group.health().is_healthy, "healthy", env.limit)


async def test_a_join_that_is_refused_for_long_during_a_session(caplog: pytest.LogCaptureFixture) -> None:
    """A cooperative member keeps its claims during it."""
    hook = StallHook()
    async with made_for("cooperative") as env:
        handler = WorkHandler(env)
        async with (
            member(env, hooks=(hook,), session_timeout=60.0) as group,
            running(group.run("orders", handler)),
        ):
            await handler.until("claim 3@0")
            fault = env.cluster.faults.on("JoinGroup", client_id="ann", times=None).error(
                "COORDINATOR_LOAD_IN_PROGRESS"
            )
            async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
                await fault.wait_hit()
                await asyncio.sleep(LONG_JOIN + 5)
                assert [kind for kind, _, _ in hook.seen] == ["join"]
                fault.cancel()
                await env.bell.until(
                    lambda: bool(other.session and other.session.claims), "a share", env.limit
                )
                await env.bell.until(lambda: group.health().state == "stable", "stable", env.limit)
                assert group.session is handler.sessions[0]
    assert len([line for line in join_warnings(caplog) if "COORDINATOR_LOAD" in line]) == 1


async def test_a_join_that_begins_before_the_first_claims() -> None:
    """The first session is not stable yet when a cooperative member has to join again."""
    hook = StallHook()
    async with made_for("cooperative") as env:
        handler = WorkHandler(env)
        held = env.cluster.faults.on("OffsetFetch", client_id="ann").hold()
        async with member(env, hooks=(hook,)) as group, running(group.run("orders", handler)):
            await held.wait_hit()
            fault = env.cluster.faults.on("JoinGroup", client_id="ann", times=None).error(
                "COORDINATOR_LOAD_IN_PROGRESS"
            )
            async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
                await fault.wait_hit()
                held.release()
                await handler.until("claim 3@0")
                await asyncio.sleep(LONG_JOIN + 5)
                assert [kind for kind, _, _ in hook.seen] == ["join"]
                fault.cancel()
                await env.bell.until(lambda: group.health().state == "stable", "stable", env.limit)


async def test_joins_that_fail_one_after_the_other(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    """`run()` repeats a join that has used up its retries: all of them are one long join."""
    hook, handler = StallHook(), WorkHandler(env)
    fault = env.cluster.faults.on("JoinGroup", times=None).error("NOT_COORDINATOR")
    options = {"rejoin_retry_max": 1, "rejoin_backoff": 0.5}
    async with member(env, hooks=(hook,), **options) as group, running(group.run("orders", handler)):
        await asyncio.sleep(3 * LONG_JOIN)
        ((kind, seconds, text),) = hook.seen
        assert (kind, seconds) == ("join", pytest.approx(LONG_JOIN))
        assert "NOT_COORDINATOR" in text
        fault.cancel()
        await handler.until("setup")
    assert len(join_warnings(caplog)) == 1


async def test_each_call_of_consume_is_another_join(env: VirtualEnvironment) -> None:
    """The time between two calls does not count."""
    hook, handler = StallHook(), WorkHandler(env)
    fault = env.cluster.faults.on("JoinGroup", times=None).error("NOT_COORDINATOR")
    options = {"rejoin_retry_max": 1, "rejoin_backoff": 0.5}
    async with member(env, hooks=(hook,), **options) as group:
        for _ in range(3):
            with pytest.raises(BrokerError):
                await group.consume("orders", handler)
            await asyncio.sleep(2 * LONG_JOIN)
        fault.cancel()
    assert hook.seen == []


async def test_a_handler_that_sets_up_for_long_is_no_long_join(env: VirtualEnvironment) -> None:
    class Slow(WorkHandler):
        async def on_assigned(self, session: Session, partitions: object) -> None:
            await asyncio.sleep(3 * LONG_JOIN)
            await super().on_assigned(session, partitions)

    hook, handler = StallHook(), Slow(env)
    async with member(env, hooks=(hook,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
    assert hook.seen == []


async def test_no_coordinator_is_found(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    hook, handler = StallHook(), WorkHandler(env)
    env.cluster.faults.on("FindCoordinator", times=None).error("COORDINATOR_NOT_AVAILABLE")
    config = {"rejoin_retry_max": 1000}
    async with member(env, hooks=(hook,), **config) as group, running(group.run("orders", handler)):
        await asyncio.sleep(3 * UNKNOWN_COORDINATOR)
        assert [(kind, seconds) for kind, seconds, _ in hook.seen] == [("coordinator", UNKNOWN_COORDINATOR)]
        assert sum("no coordinator found" in line for line in caplog.messages) == 1
        assert group.health().state == "looking for the coordinator"


async def test_heartbeats_are_not_answered(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    hook, handler = StallHook(), WorkHandler(env)
    config = {"session_timeout": 60.0}
    async with member(env, hooks=(hook,), **config) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        for _ in range(2):
            fault = env.cluster.faults.on("Heartbeat", times=None).error("COORDINATOR_NOT_AVAILABLE")
            await asyncio.sleep(3 * UNKNOWN_COORDINATOR)
            assert any("heartbeats fail" in problem for problem in group.health().problems)
            fault.cancel()
            await asyncio.sleep(2 * UNKNOWN_COORDINATOR)
    assert [kind for kind, _, _ in hook.seen] == ["coordinator"] * 2
    assert sum("has not answered a heartbeat" in line for line in caplog.messages) == 2


async def test_a_lost_membership_is_logged_and_in_errors(
    handler: WorkHandler, env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        errors = group.errors()
        env.cluster.faults.on("Heartbeat", times=2).error("UNKNOWN_MEMBER_ID")
        await handler.until("setup", times=2)
        async with asyncio.timeout(1):
            error = await anext(errors)
            while not (isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_MEMBER_ID):
                error = await anext(errors)
    assert sum("of group 'g' is lost: heartbeat of member" in line for line in caplog.messages) == 1
