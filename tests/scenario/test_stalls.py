"""What holds a member up is never silent: one log line and one call of `on_stall` each, and it is in `health()`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.group.stalls import LONG_JOIN, UNKNOWN_COORDINATOR
from tests.scenario.support import WorkHandler, member, now, running, working
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1) as environment:
        yield environment


class StallHook:
    """A hook that keeps the calls of `on_stall`, with their times."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, str]] = []
        self.times: list[float] = []

    def on_stall(self, group_id: str, kind: str, seconds: float, text: str) -> None:
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
            assert hook.times == [pytest.approx(began + LONG_JOIN, abs=0.5)]
            assert [line for line in caplog.messages if "the join is not complete" in line] == [text]
            waits_for = other.health().waits_for
            assert waits_for is not None
            assert "the group to complete the join: 1" in waits_for
            gate.open.set()
            await handler.until("setup")
    assert len(hook.seen) == 1


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
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    handler = WorkHandler(env)
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
