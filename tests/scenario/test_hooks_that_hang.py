"""`setup`, `on_assigned` and `on_revoked` that take too long while the session goes on (cooperative, consumer).

They have the limit that the end of an eager session sets; the log and the health name them, and `run()` goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from asyncgroup import Claim, Record, Session, TopicPartition
from asyncgroup.group.claim_source import ClaimSource
from tests.scenario.support import SessionEndHook, WorkHandler, member, now, running
from tests.scenario.three_protocols import made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.asyncio

PROTOCOLS = ["cooperative", pytest.param("consumer", marks=pytest.mark.full)]
LIMIT = 10.0
"""The rebalance timeout; the handler of a revoked claim has 8 s of it, a hook 9 s."""


class Hangs(WorkHandler):
    """Hangs in one method, the first time; with `ignores` for another minute after its cancellation."""

    def __init__(self, env: VirtualEnvironment, method: str, *, ignores: bool = False) -> None:
        super().__init__(env)
        self.method = method
        self.ignores = ignores
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
            await asyncio.sleep(60.0)

    async def setup(self, session: Session) -> None:
        await super().setup(session)
        await self._hang("setup")

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        await super().on_assigned(session, partitions)
        await self._hang("on_assigned")

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        await super().on_revoked(session, partitions)
        await self._hang("on_revoked")


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", [pytest.param("setup", marks=pytest.mark.full), "on_assigned"])
async def test_a_start_that_hangs(protocol: str, method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its partitions go to others as in an eager group: the session ends, and `run()` joins again."""
    ends = SessionEndHook()
    async with made_for(protocol) as env:
        handler = Hangs(env, method)
        async with (
            member(env, hooks=(ends,), rebalance_timeout=LIMIT) as ann,
            running(ann.run("orders", handler)) as run,
            member(env, "bob", rebalance_timeout=LIMIT) as bob,
        ):
            await handler.until(f"{method} hangs")
            await asyncio.sleep(LIMIT + 1.0)
            assert any(method in problem for problem in ann.health().problems), "it hangs, as the health says"
            assert method in caplog.text
            async with running(bob.run("orders", WorkHandler(env))):
                began = now()
                await env.bell.until(lambda: len(partitions_of(bob)) == 2, "bob's half", env.limit)
                assert now() - began < LIMIT + 5 * env.heartbeat_interval
                await env.bell.until(lambda: len(partitions_of(ann)) == 2, "ann's half", env.limit)
                assert not run.done()
                assert handler.calls.count(f"{method} cancelled") == 1
                await env.bell.until(lambda: ann.health().is_healthy, "a healthy member", env.limit)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_error_after_the_limit(protocol: str) -> None:
    """`on_revoked` ignores its cancellation, so that it is not waited for; what it raises later ends `run()` all the same."""

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
async def test_on_assigned_beside_a_revocation(protocol: str) -> None:
    """The hook is not cancelled when the handlers of revoked claims are: it has the time that is reserved for hooks."""
    ends = SessionEndHook()

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
    """What was revoked before the first claims could start is not looked up: its offsets are another member's concern."""

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
