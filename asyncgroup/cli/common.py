"""What the commands share: arguments, signals, numbers for people."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from asyncgroup.checks import check_group_id, check_topic
from asyncgroup.errors import ConfigError
from asyncgroup.signals import on_signals

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = [
    "INTERRUPTED",
    "StopEvent",
    "Terminated",
    "add_topic",
    "argument",
    "cancel_on_sigterm",
    "port",
    "positive",
    "rate",
    "seconds",
    "size",
    "stop_signals",
]

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code of a program that Ctrl-C ended before its work was done."""

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM came; like KeyboardInterrupt no error, so nothing that handles errors takes it."""

    code = 128 + signal.SIGTERM


# --- arguments -----------------------------------------------------------------------------------------------------


def argument(check: Callable[[Any], T]) -> Callable[[str], T]:
    """A configuration check as a type of argparse, so that a wrong value is a usage error."""

    def parse(text: str) -> T:
        try:
            return check(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _number(convert: Callable[[str], T], least: float, most: float, rule: str) -> Callable[[str], T]:
    def parse(text: str) -> T:
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:  # type: ignore[operator]  # T is int or float
            raise argparse.ArgumentTypeError(f"{text!r} is not {rule}")
        return value

    return parse


positive = _number(int, 1, float("inf"), "a whole number, 1 or more")
"""Type of an argument: a whole number, 1 or more."""

seconds = _number(float, 1e-3, 1e9, "a number of seconds above 0")
"""Type of an argument: a duration in seconds."""

port = _number(int, 0, 65535, "a port, 0 to 65535")
"""Type of an argument: a TCP port, 0 for any that is free."""

group_id = argument(check_group_id)
"""Type of an argument: a consumer group's id."""


def add_topic(parser: argparse.ArgumentParser) -> None:
    """Add -t/--topic."""
    parser.add_argument("-t", "--topic", required=True, type=argument(check_topic), help="the topic's name")


# --- signals -------------------------------------------------------------------------------------------------------


class StopEvent(asyncio.Event):
    """Set when the command is to end; `exit_code` says by which signal (128 + its number), 0 without one."""

    def __init__(self) -> None:
        super().__init__()
        self.exit_code = 0


@contextmanager
def stop_signals(on_stop: Callable[[], None] | None = None) -> Iterator[StopEvent]:
    """An event that Ctrl-C and SIGTERM set, for commands that then end in good order; `on_stop` is called then.

    Only the first signal is taken: a second one has its usual effect, should the end take too long.
    """
    stop = StopEvent()

    def on_signal(number: signal.Signals) -> None:
        restore()
        stop.exit_code = stop.exit_code or 128 + number
        stop.set()
        if on_stop is not None:
            on_stop()

    with on_signals(on_signal) as restore:
        yield stop


@contextmanager
def cancel_on_sigterm() -> Iterator[None]:
    """Let SIGTERM cancel the current task, as Ctrl-C does by itself, so that it cleans up; raises Terminated then."""
    task = asyncio.current_task()
    assert task is not None
    received = False

    def on_signal(_: signal.Signals) -> None:
        nonlocal received
        received = True
        task.cancel()

    with on_signals(on_signal, (signal.SIGTERM,)):
        try:
            yield
        except asyncio.CancelledError:
            if received:
                raise Terminated from None
            raise


# --- numbers for people --------------------------------------------------------------------------------------------


def size(count: float) -> str:
    """Bytes as people read them: `61.2 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def rate(count: int, duration: float) -> str:
    """`108,637 records/s`; without a duration there is no rate."""
    return f"{count / duration:,.0f} records/s" if duration > 0 else "- records/s"
