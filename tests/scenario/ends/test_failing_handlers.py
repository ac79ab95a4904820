"""Handlers that raise in any of their methods: the exception is raised unchanged, only finished work is committed.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from asyncgroup import (
    Claim,
    ConfigError,
    ConsumerGroup,
    ErrorCode,
    Handler,
    HandlerCancelled,
    Session,
    in_thread,
)
from tests.scenario.support import SessionEndHook, WorkHandler, committed, member, running
from tests.stories.virtual import VirtualEnvironment


class Boom(Exception):
    """An exception of a user's handler."""


class FailsIn(WorkHandler):
    """Raises in the given methods; in consume_claim after 3 records of partition 0."""

    def __init__(self, env: VirtualEnvironment, *methods: str) -> None:
        super().__init__(env)
        self.methods = methods
        self.errors = {method: Boom(f"boom in {method}") for method in methods}

    def fail(self, method: str) -> None:
        if method in self.methods:
            raise self.errors[method]

    async def setup(self, session: Session) -> None:
        await super().setup(session)
        self.fail("setup")

    async def on_assigned(self, session: Session, partitions: object) -> None:
        await super().on_assigned(session, partitions)
        self.fail("on_assigned")

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        if claim.partition != 0:
            await super().consume_claim(session, claim)
            return
        async for record in claim:
            if record.offset == 3:
                self.fail("consume_claim")
            claim.mark(record)
            self.note(f"done 0@{record.offset}")

    async def on_revoked(self, session: Session, partitions: object) -> None:
        await super().on_revoked(session, partitions)
        self.fail("on_revoked")

    async def on_lost(self, session: Session, partitions: object) -> None:
        await super().on_lost(session, partitions)
        self.fail("on_lost")

    async def cleanup(self, session: Session) -> None:
        await super().cleanup(session)
        self.fail("cleanup")


TABLE = {
    # the method that raises: the offsets committed afterwards, by partition
    "setup": {},
    "on_assigned": {},
    "consume_claim": {0: 3, 1: 5},
    "on_revoked": {0: 5, 1: 5},
    "cleanup": {0: 5, 1: 5},
}


@pytest.mark.parametrize("how", ["consume", "run"])
@pytest.mark.parametrize("method", TABLE)
async def test_raises(env: VirtualEnvironment, method: str, how: str):
    handler, ends = FailsIn(env, method), SessionEndHook()
    await env.produce(5, [0, 1])
    async with member(env, hooks=(ends,), auto_commit_interval=3000.0) as group:
        async with running(getattr(group, how)("orders", handler)) as consuming:
            if method in (
                "on_revoked",
                "cleanup",
            ):  # these are called only if the session ends for another reason
                await handler.until("done 0@4")
                await handler.until("done 1@4")
                await env.member("bob")
            with pytest.raises(Boom) as caught:
                await consuming
        assert caught.value is handler.errors[method]
        assert method in " ".join(caught.value.__notes__)
        assert "'g'" in " ".join(caught.value.__notes__)
        assert committed(env) == TABLE[method]
        assert handler.calls[-1] == "cleanup"
        assert handler.calls.count("cleanup") == 1
        assert ends.names == ["Rebalanced" if method in ("on_revoked", "cleanup") else "HandlerFailed"]
    for bob in env.members:
        await bob.leave()

    # no record is lost: the next session continues after the finished work
    after = WorkHandler(env)
    async with member(env, "carl") as group, running(group.run("orders", after)):
        await after.until(f"claim 0@{TABLE[method].get(0, 0)}")
        await after.until(f"claim 1@{TABLE[method].get(1, 0)}")


async def test_on_lost_raises(env: VirtualEnvironment):
    """An exception in on_lost is raised too; nothing is committed."""
    handler = FailsIn(env, "on_lost")
    await env.produce(5, [0])
    async with member(env, auto_commit_interval=3000.0) as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("done 0@4")
            env.cluster.faults.on("Heartbeat").error(ErrorCode.ILLEGAL_GENERATION)
            with pytest.raises(Boom, match="boom in on_lost"):
                await consuming
        assert handler.calls[-2:] == ["lost [0, 1, 2, 3]", "cleanup"]
    assert committed(env) == {}


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception that refuses notes, because it is immutable."""

    why: str


class Mute(Exception):
    """An exception whose `__str__` raises."""

    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


async def ended_run(
    env: VirtualEnvironment, group: ConsumerGroup, handler: FailsIn, method: str
) -> asyncio.Task[None]:
    """Run the group until `method` of its handler has failed; return the task of `run`, which has ended."""
    task = asyncio.create_task(group.run("orders", handler))
    if method == "cleanup":
        await handler.until("done 0@4")
        env.cluster.create_partitions("orders", 5)
    await asyncio.wait([task], timeout=60.0)
    assert task.done()
    return task


@pytest.mark.parametrize("method", ["setup", "consume_claim", "cleanup"])
@pytest.mark.parametrize("error", [Frozen("why"), Mute()], ids=["frozen", "mute"])
async def test_raises_unusual_exceptions(env: VirtualEnvironment, error: Exception, method: str):
    """Regression test: the claim had ended, and its session continued as if nothing had happened."""
    handler = FailsIn(env, method)
    handler.errors[method] = error
    await env.produce(5, [0])
    async with member(env) as group:
        task = await ended_run(env, group, handler, method)
        assert task.exception() is error
        assert str(group.health())
        assert handler.calls[-1] == "cleanup"


@pytest.mark.parametrize("method", ["consume_claim", "cleanup"])
async def test_ends_although_a_log_filter_raises(env: VirtualEnvironment, method: str):
    """Regression test: the claim had ended, and its session continued as if nothing had happened."""
    refused: list[str] = []

    def refuse(record: logging.LogRecord) -> bool:
        if handler.errors[method] is (record.exc_info or [None])[1]:
            refused.append(record.getMessage())
            raise OSError("the disk of the log is full")
        return True

    handler = FailsIn(env, method)
    await env.produce(5, [0])
    log = logging.getLogger("asyncgroup.group")
    log.addFilter(refuse)
    try:
        async with member(env) as group:
            task = await ended_run(env, group, handler, method)
            assert isinstance(task.exception(), (Boom, OSError))
            assert refused
            assert handler.calls[-1] == "cleanup"
    finally:
        log.removeFilter(refuse)


@contextlib.contextmanager
def refusing_logs(name: str, text: str) -> Iterator[list[str]]:
    """Add a log filter that raises for messages with `text`; yield the refused ones."""
    refused: list[str] = []

    def refuse(record: logging.LogRecord) -> bool:
        if text in record.getMessage():
            refused.append(record.getMessage())
            raise OSError("the disk of the log is full")
        return True

    log = logging.getLogger(name)
    log.addFilter(refuse)
    try:
        yield refused
    finally:
        log.removeFilter(refuse)


async def test_a_returned_claim_ends_the_session_although_a_log_filter_raises(env: VirtualEnvironment):
    """Regression test: the session continued, and no task consumed the claim's partition."""

    class Returns(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            if claim.partition:
                await claim.wait_ended()

    ends = SessionEndHook()
    with refusing_logs("asyncgroup.group", "returned although its claim is live") as refused:
        async with member(env, hooks=(ends,)) as group, asyncio.timeout(60):
            await group.consume("orders", Returns(env))
    assert ends.names == ["ClaimReturned"]
    assert len(refused) == 1


async def test_claims_end_although_a_log_filter_raises(env: VirtualEnvironment):
    """Regression test: an error that no iterator raised is logged at the end, and the session never ended."""

    class Waits(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            await claim.wait_ended()

    refusal = env.cluster.faults.on("Fetch", topic="orders").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    handler = Waits(env)
    with refusing_logs("asyncgroup.consumer", "closed before an error was raised") as refused:
        async with member(env) as group:
            task = asyncio.create_task(group.run("orders", handler))
            await refusal.wait_hit()
            await asyncio.sleep(1)
            async with asyncio.timeout(60):
                await group.aclose()
                await task
    assert refused
    assert handler.calls[-1] == "cleanup"


async def test_a_stubborn_handler_is_waited_for_although_a_log_filter_raises(env: VirtualEnvironment):
    """Regression test: the member left the group while its handler still ran, and its last marks were lost."""

    class Stubborn(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            async for record in claim:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
                await asyncio.sleep(100)  # longer than the pause between two reminders in the log
                claim.mark(record)
                self.note("marked")

    handler = Stubborn(env)
    await env.produce(1, [0])
    with refusing_logs("asyncgroup.group", "is still running") as refused:
        async with member(env, close_timeout=5.0) as group:
            task = asyncio.create_task(group.run("orders", handler))
            await handler.until("assigned [0, 1, 2, 3]")
            await asyncio.sleep(1)
            await group.aclose()
            assert "marked" in handler.calls
            await task
    assert refused
    assert handler.calls[-1] == "cleanup"
    assert committed(env) == {0: 1}


async def test_two_methods_raise(env: VirtualEnvironment):
    """The first exception is raised, with a note naming the other; never an ExceptionGroup."""
    handler = FailsIn(env, "consume_claim", "cleanup")
    await env.produce(5, [0])
    async with member(env) as group:
        with pytest.raises(Boom, match="boom in consume_claim") as caught:
            await group.run("orders", handler)
        assert "boom in cleanup" in " ".join(caught.value.__notes__)


async def test_two_claims_raise_at_once(env: VirtualEnvironment):
    class Both(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            if claim.partition < 2:
                raise Boom(f"boom {claim.partition}")
            await super().consume_claim(session, claim)

    async with member(env) as group:
        with pytest.raises(Boom, match="boom 0") as caught:
            await group.run("orders", Both(env))
        assert "boom 1" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize("method", ["setup", "consume_claim"])
async def test_a_handler_that_cancels_itself(ends: SessionEndHook, env: VirtualEnvironment, method: str):
    """A CancelledError raised by the handler itself must not count as success."""

    class Stray(WorkHandler):
        async def setup(self, session: Session) -> None:
            await super().setup(session)
            if method == "setup":
                raise asyncio.CancelledError

        async def consume_claim(self, session: Session, claim: Claim) -> None:
            raise asyncio.CancelledError

    async with member(env, hooks=(ends,)) as group:
        with pytest.raises(HandlerCancelled, match=f"{method}.* raised CancelledError"):
            await group.consume("orders", Stray(env))
        assert ends.names == ["HandlerFailed"]


async def test_a_handler_without_consume_claim(env: VirtualEnvironment):
    """The error names the missing method and its arguments."""

    class Empty(Handler):
        pass

    async with member(env) as group:
        with pytest.raises(
            ConfigError, match=r"handler of type Empty is not allowed.*consume_claim\(session, claim\)"
        ):
            await group.run("orders", Empty())
        assert env.cluster.history.of("JoinGroup") == []


async def test_run_after_a_failure(env: VirtualEnvironment):
    """The same group object can be used again with another handler, under the same member id."""
    await env.produce(5, [0])
    async with member(env) as group:
        bad, good = FailsIn(env, "consume_claim"), WorkHandler(env)
        with pytest.raises(Boom):
            await group.run("orders", bad)
        async with running(group.run("orders", good)):
            await good.until("claim 0@3")
            await good.until("done 0@4")
            assert good.sessions[0].member_id == bad.sessions[0].member_id
            assert good.sessions[0].generation_id == bad.sessions[0].generation_id + 1


async def test_a_blocking_handler_in_threads(env: VirtualEnvironment):
    """`in_thread`: an exception of the function is raised unchanged; its marks are committed."""

    def work(_session: Session, claim) -> None:
        for record in claim:
            if (record.partition, record.offset) == (0, 3):
                raise Boom("boom in a thread")
            claim.mark(record)

    await env.produce(5, [0, 1])
    async with member(env) as group:
        with pytest.raises(Boom, match="boom in a thread"):
            await group.run("orders", in_thread(work))
    assert committed(env)[0] == 3


@pytest.mark.parametrize("how", ["consume", "run"])
@pytest.mark.parametrize("method", ["setup", "consume_claim", "cleanup"])
async def test_the_exception_is_logged_once_and_health_names_it(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture, method: str, how: str
):
    """The log names its type and place: topic, partition and offset of a claim, or the method."""
    handler = FailsIn(env, method)
    await env.produce(5, [0])
    async with member(env) as group:
        async with running(getattr(group, how)("orders", handler)) as consuming:
            if method == "cleanup":
                await handler.until("done 0@4")
                env.cluster.create_partitions("orders", 5)
            with pytest.raises(Boom):
                await consuming
        logged = [r for r in caplog.records if r.exc_info and r.exc_info[1] is handler.errors[method]]
        (record,) = logged
        assert (record.levelname, record.name) == ("ERROR", "asyncgroup.group")
        place = {"consume_claim": "consume_claim of orders-0 raised at offset 3"}.get(
            method, f"{method} raised"
        )
        assert record.getMessage().startswith(f"group g: {place}")
        assert record.getMessage().endswith(f": Boom: boom in {method}")
        health = group.health()
        assert not health.is_healthy
        assert health.problems[0].startswith(f"the handler failed: {place}")
        assert health.problems[0].endswith(f": Boom: boom in {method}")
        assert any(
            error.text == health.problems[0].removeprefix("the handler failed: ") for error in health.errors
        )

        # a working handler clears the problem
        good = WorkHandler(env)
        async with running(group.run("orders", good)):
            await good.until("setup")
            await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)


async def test_a_later_exception_is_logged_too_and_the_first_stays_the_problem(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    handler = FailsIn(env, "consume_claim", "cleanup")
    await env.produce(5, [0])
    async with member(env) as group:
        with pytest.raises(Boom):
            await group.run("orders", handler)
        assert "boom in consume_claim" in group.health().problems[0]
    logged = [r.exc_info[1] for r in caplog.records if r.exc_info and r.levelname == "ERROR"]
    assert logged == [handler.errors["consume_claim"], handler.errors["cleanup"]]


async def test_an_exception_while_the_caller_is_cancelled_is_logged_once(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    handler = FailsIn(env, "cleanup")
    async with member(env) as group:
        task = asyncio.create_task(group.run("orders", handler))
        await handler.until("claim 1@0")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    logged = [r for r in caplog.records if r.exc_info and r.exc_info[1] is handler.errors["cleanup"]]
    assert [r.getMessage() for r in logged] == ["group g: cleanup raised: Boom: boom in cleanup"]
