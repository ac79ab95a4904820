"""Signals that do not interrupt the event loop's wait, because another thread receives them, wake it up."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from asyncgroup.signals import on_signals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a thread cannot send itself a signal")


class Received:
    """The signals that were received, by a name for each handler."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._is_changed = asyncio.Event()

    def handler(self, name: str) -> Callable[..., None]:
        """Return a handler that adds the name."""

        def handle(*_: object) -> None:
            self.names.append(name)
            self._is_changed.set()

        return handle

    async def next(self, number: signal.Signals) -> list[str]:
        """Receive a signal in another thread while the event loop waits; return the names of the handlers since then."""
        self.names.clear()
        self._is_changed.clear()
        timer = threading.Timer(0.02, lambda: signal.pthread_kill(threading.get_ident(), number))
        timer.start()
        async with asyncio.timeout(2):  # without a wakeup the signal is handled when this ends
            await self._is_changed.wait()
        timer.join()
        return self.names


def wakeup_fd() -> int:
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    return fd


async def check_wakeup(number: signal.Signals) -> None:
    received = Received()
    before = wakeup_fd(), signal.getsignal(number)
    with on_signals(received.handler("ours")) as restore:
        assert await received.next(number) == ["ours"]
        restore()
        assert (wakeup_fd(), signal.getsignal(number)) == before
    assert (wakeup_fd(), signal.getsignal(number)) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_in_another_thread_wakes_up_the_loop(number: signal.Signals) -> None:
    await check_wakeup(number)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_signal_in_another_thread_wakes_up_uvloop() -> None:
    await check_wakeup(signal.SIGTERM)


async def test_an_inner_block_leaves_the_outer_one_its_wakeup() -> None:
    received = Received()
    with on_signals(received.handler("outer")):
        with on_signals(received.handler("inner")):
            assert await received.next(signal.SIGTERM) == ["inner"]
        assert await received.next(signal.SIGTERM) == ["outer"]


async def test_the_loops_own_handlers_stay() -> None:
    received, loop = Received(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, received.handler("user's"))
    loop.add_signal_handler(signal.SIGUSR1, received.handler("user's other"))
    try:
        with on_signals(received.handler("ours")):
            assert await received.next(signal.SIGINT) == ["ours"]
            assert await received.next(signal.SIGUSR1) == ["user's other"]
        assert await received.next(signal.SIGTERM) == ["user's"]
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGUSR1)


def test_a_closed_wakeup_fd_counts_as_none() -> None:
    async def block() -> list[str]:
        received = Received()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        os.close(reading)
        os.close(writing)
        with on_signals(received.handler("ours")):
            return await received.next(signal.SIGTERM)

    try:
        assert asyncio.run(block()) == ["ours"]
    finally:
        assert signal.set_wakeup_fd(-1) == -1
