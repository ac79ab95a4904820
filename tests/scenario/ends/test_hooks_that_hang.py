"""Hooks of a handler that take too long, by each group protocol.

A rebalance and the end of a session set them the same limit; `errors()`, the log and the health name them, and `run()`
goes on. Where the session ends at every rebalance (eager), the stories of one that goes on are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from asyncgroup import Claim, ConsumerGroup, ErrorCode, HookTimeout, Record, Session, TopicPartition
from asyncgroup.group.health.diagnosis import HOOK_TIMEOUT_SHOWN
from asyncgroup.group.sessions.claim_source import ClaimSource
from tests.scenario.support import SessionEndHook, WorkHandler, member, now, running
from tests.scenario.three_protocols import made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

PROTOCOLS = ["cooperative", pytest.param("consumer", marks=pytest.mark.full)]
ALL_PROTOCOLS = ["eager", *PROTOCOLS]
LIMIT = 10.0
"""The rebalance timeout or close timeout; the handler of a revoked claim has 8 s of it."""
HOOK_LIMIT = 9.0
"""What a hook has of it."""


class Hangs(WorkHandler):
    """Hangs in one method, the first time; if it ignores its cancellation, it ends `goes_on` seconds after it."""

    def __init__(
        self, env: VirtualEnvironment, method: str, *, ignores: bool = False, goes_on: float = 60.0
    ) -> None:
        super().__init__(env)
        self.method = method
        self.ignores = ignores
        self.goes_on = goes_on
        self.hung = False

    async def _hang(self, method: str) -> None:
        if method != self.method or self.hung:
            return
        self.hung = True
        self.note(f"{method} hangs")
        try:
            await asyncio.sleep(1000.0)
        except asyncio.CancelledError:
            self.note(f"{method} cancelled")
            if not self.ignores:
                raise
            await asyncio.sleep(self.goes_on)

    async def setup(self, session: Session) -> None:
        await super().setup(session)
        await self._hang("setup")

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        await super().on_assigned(session, partitions)
        await self._hang("on_assigned")

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        await super().on_revoked(session, partitions)
        await self._hang("on_revoked")

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        await super().on_lost(session, partitions)
        await self._hang("on_lost")

    async def cleanup(self, session: Session) -> None:
        await super().cleanup(session)
        await self._hang("cleanup")


@contextlib.asynccontextmanager
async def timeouts_of(group: ConsumerGroup) -> AsyncIterator[list[HookTimeout]]:
    """Yield the HookTimeouts that `errors()` of a group has yielded so far."""
    found: list[HookTimeout] = []

    async def read() -> None:
        async for error in group.errors():
            match error:
                case HookTimeout():
                    found.append(error)

    async with running(read()):
        await asyncio.sleep(0)
        yield found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ignores", [pytest.param(False, marks=pytest.mark.full), True])
async def test_on_revoked(protocol: str, ignores: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The member gives the partitions up, even if `on_revoked` goes on, and consumes the others all the time."""
    ends = SessionEndHook()
    async with made_for(protocol) as env:
        handler, other = Hangs(env, "on_revoked", ignores=ignores), WorkHandler(env)
        async with (
            member(env, hooks=(ends,), rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)) as run,
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            await handler.until("assigned [0, 1, 2, 3]")
            async with running(bob.run("orders", other)):
                await handler.until("on_revoked hangs")
                began = now()
                await env.bell.until(lambda: len(partitions_of(bob)) == 2, "bob's half", env.limit)
                assert now() - began < LIMIT + 2 * env.heartbeat_interval
                assert not run.done()
                assert not ends.causes
                (kept, *_) = set(range(4)) - set(partitions_of(bob))
                await env.produce(1, [kept])
                await handler.until(f"done {kept}@0")
                problems = ann.health().problems
                assert any("on_revoked" in problem for problem in problems), problems
                assert "brokers to respond" not in str(ann.health())
                assert "on_revoked" in caplog.text


@pytest.mark.parametrize("protocol", ALL_PROTOCOLS)
async def test_on_lost(ends: SessionEndHook, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """The member joins again without it."""
    async with made_for(protocol) as env:
        handler = Hangs(env, "on_lost")
        async with (
            member(env, hooks=(ends,), rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)) as run,
            timeouts_of(ann) as timeouts,
        ):
            await handler.until("assigned [0, 1, 2, 3]")
            await asyncio.sleep(env.heartbeat_interval)
            heartbeat = "ConsumerGroupHeartbeat" if protocol == "consumer" else "Heartbeat"
            env.cluster.faults.on(heartbeat).error(ErrorCode.UNKNOWN_MEMBER_ID)
            await handler.until("on_lost hangs")
            began = now()
            await handler.until("setup", times=2)
            assert now() - began < LIMIT
            assert ends.names == ["MemberLost"]
            assert handler.calls.count("on_lost cancelled") == 1
            assert [(error.method, error.still_runs) for error in timeouts] == [("on_lost", False)]
            assert caplog.text.count("on_lost was cancelled after") == 1
            await handler.until("assigned [0, 1, 2, 3]", times=2)
            assert not run.done()


@pytest.mark.parametrize("protocol", ALL_PROTOCOLS)
@pytest.mark.parametrize("method", [pytest.param("setup", marks=pytest.mark.full), "on_assigned"])
async def test_a_start_that_hangs(protocol: str, method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its partitions go to others: the session ends, and `run()` joins again."""
    ends = SessionEndHook()
    async with made_for(protocol) as env:
        handler = Hangs(env, method)
        async with (
            member(env, hooks=(ends,), rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)) as run,
            timeouts_of(ann) as timeouts,
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            await handler.until(f"{method} hangs")
            await asyncio.sleep(LIMIT + 1.0)
            assert any(method in problem for problem in ann.health().problems), "it hangs, as the health says"
            assert method in caplog.text
            caplog.clear()
            async with running(bob.run("orders", WorkHandler(env))):
                began = now()
                await env.bell.until(lambda: len(partitions_of(bob)) == 2, "bob's half", env.limit)
                assert now() - began < LIMIT + 5 * env.heartbeat_interval
                await env.bell.until(lambda: len(partitions_of(ann)) == 2, "ann's half", env.limit)
                assert not run.done()
                assert handler.calls.count(f"{method} cancelled") == 1
                assert [(error.method, error.still_runs) for error in timeouts] == [(method, False)]
                assert f"{method} was cancelled after" in caplog.text
                problems = ann.health().problems
                assert any(f"{method} was cancelled after" in problem for problem in problems), problems
                await env.bell.until(lambda: ann.health().is_healthy, "a healthy member", env.limit)


@pytest.mark.parametrize("protocol", ALL_PROTOCOLS)
async def test_a_timeout_that_is_over(protocol: str) -> None:
    """A member that works is healthy again soon, without another rebalance: a probe must not restart it."""
    async with made_for(protocol) as env:
        handler = Hangs(env, "on_revoked")
        async with (
            member(env, rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)) as run,
            timeouts_of(ann) as timeouts,
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            await handler.until("assigned [0, 1, 2, 3]")
            async with running(bob.run("orders", WorkHandler(env))):
                await handler.until("on_revoked cancelled")
                await env.bell.until(lambda: len(partitions_of(bob)) == 2, "bob's half", env.limit)
                (error,) = timeouts
                assert (error.method, error.still_runs) == ("on_revoked", False)
                (problem,) = ann.health().problems
                assert str(error) in problem
                await asyncio.sleep(HOOK_TIMEOUT_SHOWN)
                assert ann.health().is_healthy, ann.health()
                assert any(str(error) == seen.text for seen in ann.health().errors)
                assert not run.done()


@pytest.mark.parametrize(
    "protocol", ["eager", *(pytest.param(p, marks=pytest.mark.full) for p in ("cooperative", "consumer"))]
)
@pytest.mark.parametrize(
    ("method", "goes_on"),
    [
        pytest.param("setup", 70.0, marks=pytest.mark.full),
        ("on_assigned", 70.0),
        ("on_revoked", 0.0),
        ("on_revoked", 70.0),
        pytest.param("cleanup", 70.0, marks=pytest.mark.full),
    ],
)
async def test_a_hook_that_ignores_its_cancellation_at_the_close(
    protocol: str, method: str, goes_on: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The close waits for it, as for a handler; `errors()`, the log and the health say so while it does."""
    async with made_for(protocol) as env:
        handler = Hangs(env, method, ignores=True, goes_on=goes_on)
        async with member(env, close_timeout=LIMIT) as ann, running(ann.run("orders", handler)) as run:
            async with timeouts_of(ann) as timeouts:
                first = f"{method} hangs" if method in ("setup", "on_assigned") else "assigned [0, 1, 2, 3]"
                await handler.until(first)
                began = now()
                closing = asyncio.create_task(ann.aclose())
                await handler.until(f"{method} cancelled")
                assert now() - began == pytest.approx(HOOK_LIMIT, abs=0.1), "the same for each hook"
                if goes_on:
                    await asyncio.sleep(began + LIMIT - now())
                    assert not closing.done()
                    assert [(error.method, error.still_runs) for error in timeouts] == [(method, True)]
                    problems = ann.health().problems
                    assert any(f"{method} still running" in problem for problem in problems), problems
                await closing
                assert now() - began < LIMIT + goes_on
                await asyncio.sleep(0)
                assert [(error.method, error.still_runs) for error in timeouts] == [(method, goes_on > 0)]
                assert f"{method} was cancelled after" in caplog.text
                # one every 30 s, though the close waits for the hook in two places
                assert caplog.text.count("was cancelled, but is still running") == (2 if goes_on else 0)
            await run


@pytest.mark.parametrize("protocol", ALL_PROTOCOLS)
async def test_a_start_that_ignores_its_cancellation(protocol: str) -> None:
    """The group does not wait longer than `rebalance_timeout`; the member joins again when the hook has ended."""
    async with made_for(protocol) as env:
        handler = Hangs(env, "on_assigned", ignores=True)
        async with (
            member(env, rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)) as run,
            timeouts_of(ann) as timeouts,
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            await handler.until("on_assigned hangs")
            async with running(bob.run("orders", WorkHandler(env))):
                began = now()
                await env.bell.until(lambda: bool(partitions_of(bob)), "bob's part", env.limit)
                assert now() - began < LIMIT + 5 * env.heartbeat_interval
                assert [(error.method, error.still_runs) for error in timeouts] == [("on_assigned", True)]
                assert any("on_assigned still running" in problem for problem in ann.health().problems)
                await handler.until("setup", times=2)
                await env.bell.until(lambda: len(partitions_of(ann)) == 2, "ann's half", env.limit)
                await env.bell.until(lambda: ann.health().is_healthy, "a healthy member", env.limit)
                assert len(timeouts) == 1
                assert not run.done()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_start_beside_a_hook_that_still_runs(protocol: str) -> None:
    """The health names both hooks: one was cancelled, and claims wait for the other one."""

    class Slow(Hangs):
        may_go_on = asyncio.Event()

        async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
            await super().on_assigned(session, partitions)
            if len(partitions) < 4:
                await self.may_go_on.wait()

    async with made_for(protocol) as env:
        handler = Slow(env, "on_revoked", ignores=True)
        async with (
            member(env, rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)),
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            await handler.until("assigned [0, 1, 2, 3]")
            async with running(bob.run("orders", WorkHandler(env))):
                await env.bell.until(lambda: len(partitions_of(bob)) == 2, "bob's half", env.limit)
            await env.bell.until(lambda: len(partitions_of(ann)) == 4, "all partitions", env.limit)
            await asyncio.sleep(LIMIT + 1.0)
            problems = ann.health().problems
            assert any(p.startswith("on_revoked still running ") for p in problems), problems
            assert any(p.startswith("on_assigned running for ") for p in problems), problems
            handler.may_go_on.set()


@pytest.mark.parametrize("protocol", ["eager", pytest.param("cooperative", marks=pytest.mark.full)])
async def test_a_start_that_the_caller_cancels(protocol: str) -> None:
    """It was not too slow: it is cancelled at once, and is no HookTimeout."""
    async with made_for(protocol) as env:
        handler = Hangs(env, "on_assigned")
        async with (
            member(env) as ann,
            timeouts_of(ann) as timeouts,
            running(ann.run("orders", handler)) as run,
        ):
            await handler.until("on_assigned hangs")
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert not timeouts
            assert handler.calls.count("on_assigned cancelled") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_error_after_the_limit(protocol: str) -> None:
    """`on_revoked` ignores its cancellation, so that nothing waits for it; an error that it raises later still ends `run()`."""

    class Raises(Hangs):
        async def _hang(self, method: str) -> None:
            await super()._hang(method)
            if method == self.method:
                raise LookupError("the store is gone")

    async with made_for(protocol) as env:
        handler = Raises(env, "on_revoked", ignores=True)
        async with (
            member(env, rebalance_timeout=LIMIT) as ann,
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            run = asyncio.create_task(ann.run("orders", handler))
            await handler.until("assigned [0, 1, 2, 3]")
            async with running(bob.run("orders", WorkHandler(env))):
                await env.bell.until(lambda: len(partitions_of(bob)) == 2, "bob's half", env.limit)
                assert not run.done()
                with pytest.raises(LookupError, match="the store is gone") as raised:
                    await run
        assert any("on_revoked" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_on_assigned_beside_a_revocation(ends: SessionEndHook, protocol: str) -> None:
    """The hook is not cancelled when the handlers of revoked claims are: it has the time that is reserved for hooks."""

    async def work(_session: Session, _claim: Claim, _record: Record) -> None:
        await asyncio.sleep(1000.0)

    class Slow(WorkHandler):
        async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
            await super().on_assigned(session, partitions)
            if len(partitions) == 1:
                revoked = lambda: any(call.startswith("end ") for call in self.calls)  # noqa: E731
                await self.env.bell.until(revoked, "the end of a claim", self.env.limit)
                await asyncio.sleep(0.3)
                self.note("prepared")

    async with made_for(protocol) as env:
        handler = Slow(env, work)
        async with (
            member(env, hooks=(ends,), rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)) as run,
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            await env.produce(1, range(4))
            for number in range(4):
                await handler.until(f"record {number}@0")
            env.cluster.create_partitions("orders", 5)
            await handler.until("assigned [4]")
            async with running(bob.run("orders", WorkHandler(env))):
                await handler.until("prepared")
                await env.bell.until(lambda: bool(partitions_of(bob)), "bob's part", env.limit)
            assert not run.done()
            assert not ends.causes


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_revocation_while_the_handler_opens(protocol: str) -> None:
    """Partitions that were revoked before the first claims could start are not looked up: they belong to another member."""

    class Opens(WorkHandler):
        may_open = asyncio.Event()

        async def _open(self, session: Session, source: ClaimSource) -> None:
            self.note("opens")
            await self.may_open.wait()

    async with made_for(protocol) as env:
        handler = Opens(env)
        async with (
            member(env) as ann,
            running(ann.run("orders", handler)),
            member(env, "bob") as bob,
            running(bob.run("orders", WorkHandler(env))),
        ):
            await handler.until("opens")
            await env.bell.until(lambda: len(partitions_of(bob)) == 2, "bob's half", env.limit)
            kept = partitions_of(ann)
            handler.may_open.set()
            await handler.until(f"assigned {kept}")
            requests = [each.request for each in env.cluster.history.of("OffsetFetch", client_id="ann")]
            topics = [topic for request in requests for group in request.groups for topic in group.topics]
            assert {number for topic in topics for number in topic.partition_indexes} == set(kept)
