"""Helpers that the commands share: argument types and handling of SIGINT and SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
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
    "add_missing_topics",
    "add_topic",
    "argument",
    "cancel_on_sigterm",
    "partition",
    "port",
    "positive",
    "seconds",
    "seconds_or_zero",
    "separator",
    "stop_signals",
    "topic_name",
    "whole",
]

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code of a program that Ctrl-C ended before its work was done."""

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM was received. Like KeyboardInterrupt it is not an Exception, so that no error handler catches it."""

    code = 128 + signal.SIGTERM


# --- arguments -----------------------------------------------------------------------------------------------------


def argument(check: Callable[[Any], T]) -> Callable[[str], T]:
    """Turn a configuration check into an argument type, so that a wrong value is a usage error."""

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
whole = _number(int, 0, 0x7FFFFFFF, "a whole number, 0 or more")
"""Argument type: a whole number, 1 or more."""

seconds = _number(float, 1e-3, 1e9, "a number of seconds above 0")
"""Argument type: a duration in seconds."""

seconds_or_zero = _number(float, 0, 1e9, "a number of seconds, 0 or more")
"""Argument type: a delay in seconds."""

partition = _number(int, 0, 2**31 - 1, "a partition, 0 or more")
"""Argument type: a partition's number."""

port = _number(int, 0, 65535, "a port, 0 to 65535")
"""Argument type: a TCP port, 0 for any free port."""

group_id = argument(check_group_id)
"""Argument type: a consumer group's id."""


def separator(text: str) -> bytes:
    """Argument type: the text between key and value, in which `\\t` is a tab."""
    if not text:
        raise argparse.ArgumentTypeError("the separator is empty")
    return os.fsencode(text.replace("\\t", "\t"))


def topic_name(text: str) -> str:
    """Argument type: a topic's name; one of Pulsar may have its tenant and namespace, and its domain."""
    if "/" not in text:
        return check_topic(text)
    from asyncgroup.pulsar.wire.topic_name import TopicName

    return str(TopicName.parse(text))


def add_topic(parser: argparse.ArgumentParser) -> None:
    """Add -t/--topic."""
    parser.add_argument("-t", "--topic", required=True, type=argument(topic_name), help="the topic's name")


def add_missing_topics(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add --missing-topics; `prefix` begins its help."""
    parser.add_argument(
        "--missing-topics",
        choices=("error", "wait"),
        help=f"{prefix}whether a topic that does not exist is an error, or is waited for and then read from its start "
        "(default: error)",
    )


# --- signals -------------------------------------------------------------------------------------------------------


class StopEvent(asyncio.Event):
    """An event that is set when the command should stop."""

    def __init__(self) -> None:
        super().__init__()
        self.exit_code = 0
        """128 + the number of the signal that was received; 0 if there was none."""


@contextmanager
def stop_signals(on_stop: Callable[[], None] | None = None) -> Iterator[StopEvent]:
    """Yield an event that Ctrl-C and SIGTERM set, for commands that then shut down cleanly; call `on_stop` as well.

    Only the first signal is handled. In case the shutdown takes too long, a second one cancels the command (Ctrl-C) or ends
    the process (SIGTERM); a third one ends the process at once, also while a task blocks the event loop.
    """
    stop = StopEvent()

    def on_signal(number: signal.Signals) -> None:
        stop.exit_code = stop.exit_code or 128 + number
        stop.set()
        if on_stop is not None:
            on_stop()

    with on_signals(on_signal, handled=1, then_previous=True):
        yield stop


@contextmanager
def cancel_on_sigterm() -> Iterator[None]:
    """Cancel the current task on SIGTERM, as asyncio does on Ctrl-C, so that it cleans up; then raise Terminated."""
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
