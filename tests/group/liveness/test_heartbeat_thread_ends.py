"""The ends and failures of the heartbeat thread, in real time, with a stand-in that sends nothing."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from asyncgroup.group.liveness import heartbeat_thread
from asyncgroup.group.liveness.heartbeat_thread import HeartbeatThread, is_first_line
from asyncgroup.group.liveness.thread_heartbeats import ThreadHeartbeats

NAME = "asyncgroup heartbeats test"
LIMIT = 20.0


class Watched:
    """An event loop with a heartbeat thread; `thread_heartbeats()` is what the thread runs while the loop is blocked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.began = threading.Semaphore(0)
        self.make: Callable[[], Any] = lambda: self
        self.unblocked: list[float] = []
        self.thread = HeartbeatThread("test", self._make, self.unblocked.append, lambda: 0.02)

    def _make(self, _since: float) -> ThreadHeartbeats | None:
        self.began.release()
        return cast("ThreadHeartbeats | None", self.make())

    async def run(self) -> None:
        await asyncio.sleep(LIMIT)

    def start(self) -> None:
        async def start() -> None:
            self.thread.start()

        self.loop.run_until_complete(start())

    def block(self) -> None:
        """Return when the thread stands in."""
        assert self.began.acquire(timeout=LIMIT)

    def stop(self) -> None:
        self.loop.run_until_complete(self.thread.stop())
        self.loop.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(heartbeat_thread, "BLOCKED_SECONDS", 0.02)
    made = Watched()
    yield made
    if not made.loop.is_closed():
        made.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == NAME]


def test_a_loop_that_is_closed_while_the_thread_stands_in(watched: Watched) -> None:
    """A program that does not close its group must not keep its partitions by heartbeats for ever."""
    watched.start()
    watched.block()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == NAME]
    watched.loop.close()
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_a_stop_while_the_thread_stands_in(watched: Watched) -> None:
    watched.start()
    watched.block()
    watched.stop()
    assert len(watched.unblocked) == 1


def test_thread_heartbeats_that_fail(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on: the next block has a stand-in again."""

    def fail() -> None:
        raise OSError("too many open files")

    watched.make = fail
    watched.start()
    for _ in range(2):
        watched.block()
        watched.loop.run_until_complete(asyncio.sleep(0.05))
    watched.stop()
    assert caplog.text.count("too many open files") >= 2


def test_a_block_of_a_member_that_is_not_in_its_group(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.make = lambda: None
    watched.start()
    watched.block()
    deadline = time.monotonic() + LIMIT
    while not caplog.messages and time.monotonic() < deadline:
        time.sleep(0.01)
    (text,) = caplog.messages
    assert "the event loop is blocked" in text
    assert "heartbeats go on" not in text


def test_a_thread_that_cannot_start(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(threading.Thread, "start", refuse)
        watched.start()
    assert caplog.messages == ["group test: there is no heartbeat thread: can't start new thread"]
    assert not watched.thread.is_running


def test_one_line_for_all_groups_of_a_loop(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    results: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def is_first(loop: asyncio.AbstractEventLoop, since: float, now: float) -> bool:
        results.put(is_first_line(loop, since, now))
        return False

    async def start() -> None:
        watched.thread.start()
        other.start()

    monkeypatch.setattr(heartbeat_thread, "BLOCKED_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat_thread, "is_first_line", is_first)
    other = HeartbeatThread("test", watched._make, watched.unblocked.append, lambda: 0.02)
    watched.loop.run_until_complete(start())
    assert sorted([results.get(timeout=LIMIT), results.get(timeout=LIMIT)]) == [False, True]
    watched.loop.run_until_complete(other.stop())
    assert watched.unblocked


def test_a_later_block_is_logged_again() -> None:
    loop, another = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        assert is_first_line(loop, 10.0, 11.0)
        assert not is_first_line(loop, 10.5, 11.5)
        assert is_first_line(another, 10.5, 11.5)
        assert is_first_line(loop, 11.2, 12.2)
        assert not is_first_line(loop, 10.5, 12.5)
    finally:
        loop.close()
        another.close()
