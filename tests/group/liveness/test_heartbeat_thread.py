"""The heartbeat thread, in real time: handlers that block their event loop, with a broker on a separate thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count, pairwise
from typing import Any

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Record, Session, ThreadClaim, in_thread
from asyncgroup.errors import ClaimStuck, EventLoopBlocked, MemberLost
from asyncgroup.testing import KafkaServer

pytestmark = pytest.mark.real

SESSION_TIMEOUT = 1.2
HEARTBEAT = 0.3
BLOCK = 2.5
"""Seconds that a handler blocks: twice the session timeout."""

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"session_timeout": SESSION_TIMEOUT, "heartbeat_interval": HEARTBEAT},
    "cooperative": {
        "session_timeout": SESSION_TIMEOUT,
        "heartbeat_interval": HEARTBEAT,
        "assignors": ("cooperative-sticky",),
    },
    "consumer": {"group_protocol": "consumer"},
}

_NUMBERS = count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaServer]:
    with KafkaServer(
        group_min_session_timeout=0.1,
        group_consumer_session_timeout=SESSION_TIMEOUT,
        group_consumer_heartbeat_interval=HEARTBEAT,
        initial_rebalance_delay=0.0,
    ) as server:
        yield server


class Blocker(Handler):
    """Blocks the event loop at the record `block`, for `seconds`; keeps what it saw."""

    def __init__(self, seconds: float = BLOCK) -> None:
        self.seconds = seconds
        self.handled: list[bytes | None] = []
        self.calls: list[str] = []
        self.ends: list[Exception | None] = []
        self.changed = asyncio.Event()

    async def setup(self, session: Session) -> None:
        self._note(f"setup {session.member_id}")

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            if record.value == b"block":
                self.block(record)
            claim.mark(record)
            self.handled.append(record.value)
            self.changed.set()
        self.ends.append(claim.cause)

    def block(self, record: Record) -> None:
        time.sleep(self.seconds)  # what a handler must not do

    async def cleanup(self, session: Session) -> None:
        self._note("cleanup")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Stalled:
    """A hook that keeps its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def on_member_stalled(self, group_id: str, kind: str, seconds: float, text: str) -> None:
        self.seen.append((kind, seconds))


@asynccontextmanager
async def consuming(
    kafka: KafkaServer, handler: Handler, hook: Stalled | None = None, **config: Any
) -> AsyncIterator[ConsumerGroup]:
    """A member of a new group that consumes a new topic of the same name."""
    name = f"blocked-{next(_NUMBERS)}"
    kafka.create_topic(name, 2)
    kafka.produce(name, b"first", partition=0)
    options = ConsumerConfig(auto_offset_reset="earliest", auto_commit_interval=0.1, **config)
    async with ConsumerGroup(kafka.bootstrap_servers, name, options, hooks=[hook] if hook else []) as group:
        running = asyncio.create_task(group.run(name, handler))
        try:
            yield group
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@pytest.mark.parametrize(
    "protocol", ["eager", pytest.param("cooperative", marks=pytest.mark.full), "consumer"]
)
async def test_a_blocked_event_loop_keeps_its_partitions(
    kafka: KafkaServer, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler, hook = Blocker(), Stalled()
    async with consuming(kafka, handler, hook, **PROTOCOLS[protocol]) as group:
        await handler.until(lambda: handler.handled == [b"first"])
        session, errors = group.session, group.errors()
        assert session is not None
        generation = session.generation_id
        kafka.produce(group.group_id, b"block", b"after", partition=0)
        with caplog.at_level(logging.WARNING, "asyncgroup.group"):
            await handler.until(lambda: handler.handled == [b"first", b"block", b"after"])
        await session.commit()
        assert group.session is session, "the session goes on"
        assert session.generation_id == generation
        async with asyncio.timeout(10):
            error = await anext(errors)
    assert isinstance(error, EventLoopBlocked)
    assert BLOCK - 0.5 <= error.seconds < BLOCK + 5
    (line,) = [record for record in caplog.records if "the event loop is blocked" in record.getMessage()]
    assert (vars(line)["event"], vars(line)["group"]) == ("loop_blocked", group.group_id)
    blocked = line.getMessage()
    assert "in block (test_heartbeat_thread.py:" in blocked
    assert [kind for kind, _ in hook.seen] == ["event loop"]
    beats = kafka.history.of("ConsumerGroupHeartbeat" if protocol == "consumer" else "Heartbeat")
    gaps = [later.time - earlier.time for earlier, later in pairwise(beats)]
    assert max(gaps) < SESSION_TIMEOUT
    assert len([call for call in handler.calls if call.startswith("setup")]) == 1


@pytest.mark.full
async def test_a_block_during_the_first_join_is_reported(kafka: KafkaServer) -> None:
    handler, hook = Blocker(), Stalled()
    async with consuming(kafka, handler, hook, **PROTOCOLS["eager"]) as group:
        async with asyncio.timeout(10):
            while group.health().state != "syncing":
                await asyncio.sleep(0)
        joins = len(kafka.history.of("JoinGroup"))
        time.sleep(BLOCK)
        await handler.until(lambda: handler.handled == [b"first"])
        assert len(kafka.history.of("JoinGroup")) == joins, "the member that has joined is still one"
    assert [kind for kind, _ in hook.seen] == ["event loop"]


@pytest.mark.full
async def test_without_the_thread_the_member_is_lost(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The proof that it is the thread that keeps the partitions. The block is reported after it."""
    handler, hook = Blocker(), Stalled()
    async with consuming(kafka, handler, hook, heartbeat_thread=False, **PROTOCOLS["eager"]) as group:
        await handler.until(lambda: handler.handled == [b"first"])
        kafka.produce(group.group_id, b"block", partition=0)
        handler.seconds = 0.0 if handler.handled.count(b"block") else BLOCK
        await handler.until(lambda: len(handler.calls) >= 3)
        assert isinstance(handler.ends[0], MemberLost)
        handler.seconds = 0.0
    kind, seconds = hook.seen[0]
    assert kind == "event loop"
    assert 1.0 <= seconds < BLOCK + 5
    assert any(f"the event loop was blocked for {seconds:.1f} s" in text for text in caplog.messages)


async def test_a_member_that_is_blocked_for_too_long_leaves_during_the_block(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Watching(Blocker):
        members: list[int]

        def block(self, record: Record) -> None:
            if self.seconds:
                seconds, self.seconds = self.seconds, 0.0
                until = time.monotonic() + seconds
                while (size := len(kafka.group(record.topic).members)) and time.monotonic() < until:
                    time.sleep(0.05)
                self.members = [size]

    handler, hook = Watching(20.0), Stalled()
    async with consuming(kafka, handler, hook, max_poll_interval=1.0, **PROTOCOLS["eager"]) as group:
        await handler.until(lambda: handler.handled == [b"first"])
        kafka.produce(group.group_id, b"block", partition=0)
        await handler.until(lambda: len(handler.calls) >= 3)
    assert handler.members == [0], "the group has lost the member while its handler blocked the event loop"
    cause = handler.ends[0]
    assert isinstance(cause, MemberLost)
    assert isinstance(cause.__cause__, ClaimStuck)
    assert (cause.__cause__.topic, cause.__cause__.partition) == (group.group_id, 0)
    assert {kind for kind, _ in hook.seen} == {"event loop", "claim"}
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    (line,) = [text for text in warnings if "is stuck" in text]
    assert line.endswith("; the member leaves its group")
    first, last = (call for call in handler.calls if call.startswith("setup"))
    assert first != last, "it has joined again with another id"
    assert handler.handled[:2] == [b"first", b"block"]


async def test_the_thread_ends_with_the_group(kafka: KafkaServer) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "asyncgroup heartbeats" in thread.name]

    handler = Blocker()
    async with consuming(kafka, handler, **PROTOCOLS["eager"]) as group:
        await handler.until(lambda: handler.handled == [b"first"])
        assert threads() == [f"asyncgroup heartbeats {group.group_id}"]
    assert threads() == []
    async with consuming(kafka, handler, heartbeat_thread=False, **PROTOCOLS["eager"]):
        await handler.until(lambda: handler.handled == [b"first", b"first"])
        assert threads() == []


async def test_a_thread_that_takes_one_record_after_the_other_is_not_stuck(kafka: KafkaServer) -> None:
    """The thread got all records as one batch, and marks only the last one."""
    done: list[int] = []
    finished = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(_session: Session, claim: ThreadClaim) -> None:
        for record in claim:
            time.sleep(0.1)
            done.append(record.offset)
            if record.value == b"last":
                claim.mark(record)
                loop.call_soon_threadsafe(finished.set)

    name = f"blocked-{next(_NUMBERS)}"
    kafka.create_topic(name, 1)
    kafka.produce(name, *[b"x"] * 7, b"last", partition=0)
    options = ConsumerConfig(auto_offset_reset="earliest", max_poll_interval=0.4)
    async with ConsumerGroup(kafka.bootstrap_servers, name, options) as group:
        running = asyncio.create_task(group.run(name, in_thread(work)))
        async with asyncio.timeout(30):
            await finished.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert done == list(range(8))
