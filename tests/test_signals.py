"""Signal handlers for asyncio programs, with and without support by the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from asyncgroup.signals import STOP_SIGNALS, on_signals

pytestmark = pytest.mark.asyncio


def refuse(*_: object) -> None:
    raise NotImplementedError


@pytest.fixture(params=["loop", "no-loop-signals"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with the event loop's signal handlers, and without them, as on Windows."""
    if request.param != "loop":
        monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", refuse)
        monkeypatch.setattr(asyncio.SelectorEventLoop, "remove_signal_handler", refuse)
    return str(request.param)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_each_signal_is_passed_on_and_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    came: list[int] = []
    with on_signals(came.append):
        for number in STOP_SIGNALS:
            signal.raise_signal(number)
            await until(lambda: came[-1:] == [number])  # noqa: B023  waited for at once
    assert came == list(STOP_SIGNALS)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


async def test_handlers_can_be_restored_before_the_end() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: calls.append(number))
    try:
        with on_signals(lambda _number: None) as give_back:
            give_back()
            give_back()
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: calls)
        assert calls == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_the_loop_wakes_up_for_a_signal() -> None:
    """A signal also reaches a loop that has nothing else to do."""
    came = asyncio.Event()
    with on_signals(lambda _number: came.set()):
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGTERM]).start()
        async with asyncio.timeout(10):
            await came.wait()


async def test_other_threads_take_no_signals() -> None:
    """Python allows signal handlers in the main thread only; in other threads the block runs without them."""

    async def block() -> str:
        with on_signals(lambda _number: None) as give_back:
            give_back()
            return "ran"

    assert await asyncio.to_thread(asyncio.run, block()) == "ran"
