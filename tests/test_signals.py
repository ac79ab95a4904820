"""Signal handlers for asyncio programs: without those of the event loop, and while it is blocked."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from asyncgroup.signals import STOP_SIGNALS, on_signals


def refuse(*_: object) -> None:
    raise NotImplementedError


@pytest.fixture(autouse=True)
def _without_loop_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test without the event loop's signal handlers, as on Windows."""
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", refuse)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "remove_signal_handler", refuse)


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


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


async def test_signals_are_counted_while_the_loop_is_blocked() -> None:
    """Without a turn of the event loop, after the second signal a third one would end the process."""
    before, came = handlers(), []
    with on_signals(came.append, handled=2):
        ours = handlers()
        signal.raise_signal(signal.SIGTERM)
        assert handlers() == ours
        signal.raise_signal(signal.SIGINT)
        assert handlers() == [signal.SIG_DFL] * len(STOP_SIGNALS)
        assert came == []
        await until(lambda: came == [signal.SIGTERM, signal.SIGINT])
    assert handlers() == before


async def test_the_previous_handler_is_called_once() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: called.append(number))
    try:
        came: list[int] = []
        with on_signals(came.append, handled=1, then_previous=True):
            signal.raise_signal(signal.SIGINT)
            assert (called, signal.getsignal(signal.SIGTERM)) == ([], signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
            assert (called, signal.getsignal(signal.SIGINT)) == ([signal.SIGINT], signal.SIG_DFL)
            await until(lambda: came == [signal.SIGINT])
    finally:
        signal.signal(signal.SIGINT, before)


async def test_other_threads_take_no_signals() -> None:
    """Python allows signal handlers in the main thread only; in other threads the block runs without them."""

    async def block() -> str:
        with on_signals(lambda _number: None) as give_back:
            give_back()
            return "ran"

    assert await asyncio.to_thread(asyncio.run, block()) == "ran"
