"""`heartbeat_thread=False`: a blocked event loop is reported when it runs again. A block moves the virtual clock.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup import Claim, ConsumerGroup, Record, Session
from asyncgroup.errors import EventLoopBlocked
from asyncgroup.group.liveness.heartbeat_thread import BLOCKED_SECONDS, HeartbeatThread
from asyncgroup.testing.virtual.loop import VirtualTimeLoop
from tests.scenario.support import WorkHandler, member, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.virtual import VirtualEnvironment, block

BLOCK = 4.0
UNSEEN = 1.1 * BLOCKED_SECONDS
"""Longest time at the beginning of a block that is not counted: until the timer that runs late was due."""


@pytest_asyncio.fixture(params=PROTOCOLS)
async def env(request: pytest.FixtureRequest) -> AsyncIterator[VirtualEnvironment]:
    async with made_for(str(request.param)) as environment:
        yield environment


@pytest_asyncio.fixture
async def classic() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1) as environment:
        yield environment


async def block_at_1(_session: Session, _claim: Claim, record: Record) -> None:
    if record.offset == 1:
        block(BLOCK)


class StallHook:
    """A hook that keeps the groups, kinds and seconds of its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, float]] = []

    def on_member_stalled(self, group_id: str, kind: str, seconds: float, text: str) -> None:
        assert f"was blocked for {seconds:.1f} s" in text
        self.seen.append((group_id, kind, seconds))

    def check(self, *seconds: float) -> None:
        """Check that these blocks were reported."""
        assert [kind for _, kind, _ in self.seen] == ["event loop"] * len(seconds)
        for (_, _, reported), real in zip(self.seen, seconds, strict=True):
            assert real - UNSEEN <= reported <= real


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines about blocks."""
    return [text for text in caplog.messages if "the event loop" in text]


async def next_block(group: ConsumerGroup) -> EventLoopBlocked:
    """Return the next such error of `errors()`."""
    async for error in group.errors():
        if isinstance(error, EventLoopBlocked):
            return error
    raise AssertionError("the group is closed")


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_handler_that_blocks(
    env: VirtualEnvironment, auto_commit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hook, handler = StallHook(), WorkHandler(env, block_at_1)
    config = {"heartbeat_thread": False, "auto_commit": auto_commit}
    async with member(env, hooks=(hook,), **config) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        error = asyncio.create_task(next_block(group))
        await env.produce(2, [0])
        await handler.until("done 0@1")
        async with asyncio.timeout(2 * BLOCKED_SECONDS):
            seconds = (await error).seconds
        hook.check(BLOCK)
        assert [seconds] == [seconds for _, _, seconds in hook.seen]
        assert any("the event loop was blocked" in seen.text for seen in group.health().errors)
        await asyncio.sleep(2 * env.session_timeout)
    hook.check(BLOCK)
    (line,) = lines(caplog)
    assert f"the event loop was blocked for {seconds:.1f} s" in line
    assert "heartbeat_thread" in line


async def test_a_setup_that_blocks(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    class Blocking(WorkHandler):
        async def setup(self, session: Session) -> None:
            block(BLOCK)
            await super().setup(session)

    hook, handler = StallHook(), Blocking(env)
    async with (
        member(env, hooks=(hook,), heartbeat_thread=False) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("claim 3@0")
        await asyncio.sleep(BLOCKED_SECONDS)
        hook.check(BLOCK)
    assert len(lines(caplog)) == 1


async def test_short_blocks_and_quiet_minutes(
    classic: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    hook, handler = StallHook(), WorkHandler(classic)
    async with (
        member(classic, hooks=(hook,), heartbeat_thread=False) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("claim 3@0")
        for _ in range(20):
            block(0.99 * BLOCKED_SECONDS)
            await asyncio.sleep(0.7)
        await asyncio.sleep(300)
        for seconds in (2.5, 3.5):
            block(seconds)
            await asyncio.sleep(10)
        hook.check(2.5, 3.5)
    block(BLOCK)
    await asyncio.sleep(BLOCK)
    assert len(hook.seen) == len(lines(caplog)) == 2


async def test_it_does_not_wake_up_an_idle_member(
    classic: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In virtual time there is no thread, so a member with the default settings has neither."""
    moves, jump = 0, VirtualTimeLoop._jump

    def counted(loop: VirtualTimeLoop) -> None:
        nonlocal moves
        moves += 1
        jump(loop)

    monkeypatch.setattr(VirtualTimeLoop, "_jump", counted)
    counts: list[int] = []
    for heartbeat_thread in (True, False):
        handler = WorkHandler(classic)
        async with (
            member(classic, heartbeat_thread=heartbeat_thread) as group,
            running(group.run("orders", handler)),
        ):
            await handler.until("claim 3@0")
            moves = 0
            await asyncio.sleep(60)
            counts.append(moves)
    assert counts[0] > 60
    assert abs(counts[1] - counts[0]) <= 5


async def test_a_thread_that_cannot_start(
    classic: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeartbeatThread, "start", lambda _thread: False)
    hook, handler = StallHook(), WorkHandler(classic)
    async with member(classic, hooks=(hook,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        block(BLOCK)
        await asyncio.sleep(BLOCKED_SECONDS)
    hook.check(BLOCK)


async def test_a_thread_that_starts_later(
    classic: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on it watches alone, else each block would be reported twice."""
    starts = iter([False])
    monkeypatch.setattr(HeartbeatThread, "start", lambda _thread: next(starts, True))
    hook = StallHook()
    async with member(classic, hooks=(hook,)) as group:
        for _ in range(2):
            handler = WorkHandler(classic)
            async with running(group.run("orders", handler)):
                await handler.until("claim 3@0")
                block(BLOCK)
                await asyncio.sleep(BLOCKED_SECONDS)
            hook.check(BLOCK)


async def test_groups_of_one_loop(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    """There is one log line for all groups, and a call of the hook for each."""
    hook, handler = StallHook(), WorkHandler(env)
    async with (
        member(env, "ann", hooks=(hook,), heartbeat_thread=False) as ann,
        member(env, "bob", hooks=(hook,), heartbeat_thread=False) as bob,
        running(ann.run("orders", handler)),
        running(bob.run("orders", WorkHandler(env))),
    ):
        await handler.until("setup")
        await asyncio.sleep(env.session_timeout)
        for times in (1, 2):
            block(BLOCK)
            await asyncio.sleep(env.session_timeout)
            hook.check(*[BLOCK] * 2 * times)
            assert len(lines(caplog)) == times
