"""`asyncgroup.run`: run a consumer group as a program, with signal handling and an exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from asyncgroup.checks import wrong_type
from asyncgroup.errors import UsageError
from asyncgroup.lifecycle import start_task, wait_shielded
from asyncgroup.signals import on_signals

if TYPE_CHECKING:
    from asyncgroup.group.consumer_group import ConsumerGroup
    from asyncgroup.group.handler import HandlerLike
    from asyncgroup.group.topics import Topics

__all__ = ["Program", "ProgramConsumer", "check_no_loop", "run"]

_log = logging.getLogger("asyncgroup.group")


def run(group: ConsumerGroup, topics: Topics, handler: HandlerLike) -> int:
    """Consume until Ctrl-C or SIGTERM. Call it instead of `asyncio.run(main())`.

        sys.exit(run(ConsumerGroup("localhost:9092", "orders"), "orders", handler))

    It enters the group in a new event loop, runs `ConsumerGroup.run(topics, handler)`, and closes the group, which must
    not have been entered before. Signals (SIGINT and SIGTERM, on Windows also Ctrl-Break):

    - The first one closes the group with `group.aclose()`: claims end before their next record, handlers finish their
      record, marks are committed, and the member leaves, all within `close_timeout`.
    - The second one cancels the handlers at once; marks are still committed and the member leaves.
    - The third one ends the process at once: nothing more is committed, and the member does not leave.

    The first two need the event loop. If a handler blocks it and never yields, they have no effect, and the third one ends
    the process; only code in C that does not return to Python has to be ended with SIGKILL.

    Returns the exit code: 128 + the number of the first signal, as shells do (130 for Ctrl-C, 143 for SIGTERM), or 0 if
    the group was closed without a signal. A program that does not pass it to `sys.exit` exits with 0 after a regular
    shutdown, as most supervisors expect. No KeyboardInterrupt is raised.

    Raises what entering the group and `ConsumerGroup.run` raise, including the handler's exception itself; ConfigError
    if `group` is not a ConsumerGroup; UsageError if an event loop is already running: use `await group.run(topics,
    handler)` there. In a thread other than the main one, signals are not handled.
    """
    _check_group(group)
    check_no_loop("run", "`async with group` and `await group.run(topics, handler)`")
    return asyncio.run(Program(group, lambda: group.run(topics, handler)).run())


def check_no_loop(call: str, instead: str) -> None:
    """Raise UsageError if an event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{call}() starts an event loop, but one is already running: use {instead}")


def _check_group(group: object) -> None:
    """Raise ConfigError unless it is a ConsumerGroup, such as for its servers in place of it."""
    from asyncgroup.group.consumer_group import ConsumerGroup

    if not isinstance(group, ConsumerGroup):
        allowed = "a ConsumerGroup: run(ConsumerGroup(servers, group_id), topics, handler)"
        raise wrong_type("group", group, allowed)


class ProgramConsumer(Protocol):
    """What a program runs: a group or a work queue."""

    group_id: str

    async def __aenter__(self) -> Any:
        """Open it."""

    async def __aexit__(self, *error: object) -> None:
        """Close it."""

    async def aclose(self) -> None:
        """Close it in order: handlers have their time."""


class Program:
    """Runs a group or a work queue as a program: `work()` ends when it is closed."""

    def __init__(self, consumer: ProgramConsumer, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._consumer = consumer
        self._run_consumer = work
        self._signals: list[signal.Signals] = []
        self._is_open = False  # whether the consumer was entered
        self._closing: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Run the program and return its exit code."""
        work = start_task(self._work(), name=f"{self._consumer.group_id}: run")

        def on_signal(number: signal.Signals) -> None:
            self._signals.append(number)
            if len(self._signals) == 1 and self._is_open:
                self._closing = start_task(self._consumer.aclose(), name="close")
                _log.info("group %s: %s, closing", self._consumer.group_id, number.name)
            elif not work.cancelling():  # the second signal, or the first one before the group is open
                work.cancel()

        with on_signals(on_signal, handled=2):
            try:
                await wait_shielded(work)
            except asyncio.CancelledError:
                if not self._signals:
                    raise
            if self._closing is not None:
                await self._closing
        return 128 + self._signals[0] if self._signals else 0

    async def _work(self) -> None:
        async with self._consumer:
            self._is_open = True
            await self._run_consumer()
