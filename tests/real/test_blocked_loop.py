"""Members whose event loop is blocked stay in their groups on Apache Kafka, also if it is blocked while they join."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Producer, Session
from asyncgroup.errors import EventLoopBlocked
from tests.real.support import RunningKafka
from tests.stories.real import RealEnvironment

BLOCK = 60.0
"""Seconds; the session timeouts are 10 s and, at the broker, 45 s."""

JOIN_BLOCK = 15.0
"""Seconds of a block during a join; the session timeout is the shortest that Kafka allows by default."""
SHORT_SESSION = 6.0

PARTITIONS = 4
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {},
    "cooperative": {"assignors": ("cooperative-sticky",)},
    "consumer": {"group_protocol": "consumer"},
}


class Reading(Handler):
    """Keeps what it handles; with `blocks` the record `block` blocks the event loop, which all members share."""

    def __init__(self, changed: Callable[[], object], *, blocks: bool = False) -> None:
        self.blocks = blocks
        self.handled: list[tuple[int, int]] = []
        self.sessions: list[Session] = []
        self.changed = changed

    async def setup(self, session: Session) -> None:
        self.sessions.append(session)

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            if record.value == b"block" and self.blocks:
                time.sleep(BLOCK)
            self.handled.append((record.partition, record.offset))
            claim.mark(record)
            self.changed()


class OtherMembers:
    """One more member in each of these groups, in a separate thread with its own event loop."""

    def __init__(
        self, servers: str, topic: str, prefix: str, names: Iterable[str] = PROTOCOLS, **config: Any
    ) -> None:
        self.handlers = {name: Reading(lambda: None) for name in names}
        self._connect = servers, topic, prefix
        self._config = config
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        thread.start()
        try:
            assert self._ready.wait(30)
            yield
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(60)
        assert not thread.is_alive()

    def block_until(self, event: threading.Event) -> None:
        """Block their event loop."""
        self._loop.call_soon_threadsafe(event.wait, 60.0)

    async def _run(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            servers, topic, prefix = self._connect
            runs = []
            for name, handler in self.handlers.items():
                group = await stack.enter_async_context(member(servers, prefix, name, **self._config))
                runs.append(asyncio.ensure_future(group.run(topic, handler)))
            self._ready.set()
            await self._stop.wait()
            for run in runs:
                run.cancel()
            await asyncio.wait(runs)


def member(servers: str, prefix: str, protocol: str, **more: Any) -> ConsumerGroup:
    config = ConsumerConfig(auto_offset_reset="earliest", **PROTOCOLS[protocol], **more)
    return ConsumerGroup(servers, f"{prefix}-{protocol}", config)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_handler_blocks_for_a_minute(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        await block_for_a_minute(env)


async def block_for_a_minute(env: RealEnvironment) -> None:
    others = OtherMembers(env.bootstrap_servers, env.topic, env.group_id)
    handlers = {name: Reading(env.bell.ring, blocks=name == "eager") for name in PROTOCOLS}
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(env.bootstrap_servers))
        groups = {
            name: await stack.enter_async_context(member(env.bootstrap_servers, env.group_id, name))
            for name in PROTOCOLS
        }
        runs = [asyncio.ensure_future(groups[name].run(env.topic, handlers[name])) for name in PROTOCOLS]
        stack.enter_context(others.running())

        def halves() -> bool:
            sessions = [group.session for group in groups.values()]
            return all(
                session is not None and not session.ended and len(session.claims) == PARTITIONS // 2
                for session in sessions
            )

        await env.bell.until(halves, "each member has half of the partitions", env.limit)
        await asyncio.sleep(2)  # the others have theirs, too
        sessions = {name: group.session for name, group in groups.items()}
        generations = {
            name: session.generation_id for name, session in sessions.items() if session is not None
        }
        errors = groups["eager"].errors()
        assert sessions["eager"] is not None
        number = sessions["eager"].claims[0].partition
        await producer.send(env.topic, b"block", partition=number)
        for _ in range(10):
            for partition in range(PARTITIONS):
                await producer.send(env.topic, b"after", partition=partition)

        def all_handled() -> bool:
            return all(
                len(set(handlers[name].handled) | set(others.handlers[name].handled)) == 41
                for name in PROTOCOLS
            )

        await env.bell.until(all_handled, "all records", 4 * BLOCK)
        for name, group in groups.items():
            assert group.session is sessions[name], name
            assert group.session is not None
            assert group.session.generation_id == generations[name], name
            both = handlers[name].handled + others.handlers[name].handled
            assert len(both) == len(set(both)), "no record twice"
        error = await anext(errors)
        assert isinstance(error, EventLoopBlocked)
        assert error.seconds > BLOCK - 2
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)


@pytest.mark.full
@pytest.mark.timeout(200)
async def test_a_block_while_the_member_joins(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    """Another member joins late, so that the coordinator completes the join during the block."""
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        await block_while_joining(env)


async def block_while_joining(env: RealEnvironment) -> None:
    names, config = ("eager", "cooperative"), {"session_timeout": SHORT_SESSION, "heartbeat_interval": 1.0}
    late, new = (
        OtherMembers(env.bootstrap_servers, env.topic, env.group_id, names, **config) for _ in range(2)
    )
    handlers = {name: Reading(env.bell.ring) for name in names}
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(env.bootstrap_servers))
        groups = {
            name: await stack.enter_async_context(member(env.bootstrap_servers, env.group_id, name, **config))
            for name in names
        }
        runs = [asyncio.ensure_future(groups[name].run(env.topic, handlers[name])) for name in names]
        stack.enter_context(late.running())

        def owned() -> list[int]:
            sessions = [group.session for group in groups.values()]
            return [-1 if session is None or session.ended else len(session.claims) for session in sessions]

        await env.bell.until(lambda: owned() == [2, 2], "each member has half of the partitions", env.limit)
        await asyncio.sleep(2)  # the others have theirs, too
        before = {name: (group.health().member_id, group.session) for name, group in groups.items()}
        waits = threading.Event()
        late.block_until(waits)
        stack.enter_context(new.running())
        async with asyncio.timeout(30):
            while not all(group.health().state == "joining" for group in groups.values()):
                await asyncio.sleep(0.05)
        waits.set()
        time.sleep(JOIN_BLOCK)
        await env.bell.until(lambda: max(owned()) <= 2 and min(owned()) >= 1, "shares", env.limit)
        for _ in range(10):
            for partition in range(PARTITIONS):
                await producer.send(env.topic, b"after", partition=partition)

        def handled(name: str) -> list[tuple[int, int]]:
            return [
                place
                for handler in (handlers, late.handlers, new.handlers)
                for place in handler[name].handled
            ]

        await env.bell.until(lambda: all(len(handled(name)) >= 40 for name in names), "all", env.limit)
        for name, group in groups.items():
            member_id, session = before[name]
            assert group.health().member_id == member_id, name
            assert (group.session is session) == (name == "cooperative")
            assert len(handled(name)) == 40, "no record twice"
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
