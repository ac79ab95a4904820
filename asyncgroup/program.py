"""`asyncgroup.run`: run consumer groups and work queues as a program, with signal handling and an exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

from asyncgroup.checks import wrong_type
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.lifecycle import describe_error, start_task, wait_shielded
from asyncgroup.signals import on_signals

if TYPE_CHECKING:
    from asyncgroup.group.consumer_group import ConsumerGroup
    from asyncgroup.group.sessions.handler import HandlerLike
    from asyncgroup.group.topics.topics import Topics
    from asyncgroup.workqueue.work_queue import WorkQueue
    from asyncgroup.workqueue.workers import DeliveryHandler

    Contexts: TypeAlias = AbstractAsyncContextManager[Any] | Iterable[AbstractAsyncContextManager[Any]]
    Job: TypeAlias = tuple[ConsumerGroup, Topics, HandlerLike] | tuple[WorkQueue, DeliveryHandler]

__all__ = ["Program", "ProgramConsumer", "run", "run_queue"]

_log = logging.getLogger("asyncgroup.group")


@overload
def run(group: ConsumerGroup, topics: Topics, handler: HandlerLike, /, *, contexts: Contexts = ()) -> int: ...
@overload
def run(queue: WorkQueue, handle: DeliveryHandler, /, *, contexts: Contexts = ()) -> int: ...
@overload
def run(*jobs: Job, contexts: Contexts = ()) -> int: ...
def run(*given: Any, contexts: Contexts = ()) -> int:
    """Consume until Ctrl-C or SIGTERM. Call it instead of `asyncio.run(main())`.

        sys.exit(run(ConsumerGroup("localhost:9092", "orders"), "orders", handler))
        sys.exit(run(WorkQueue("localhost:9092", "billing", "orders"), handle))
        sys.exit(run((group, "orders", handler), (queue, handle)))          # several

    It enters each group and queue in a new event loop, runs `ConsumerGroup.run(topics, handler)` or `WorkQueue.run(handle)`,
    and closes it; it must not have been entered before. A Cluster that some of them share is opened before the first, unless it
    is open already, and closed after the last. Signals (SIGINT and SIGTERM, on Windows also Ctrl-Break):

    - The first one closes them all at the same time with `aclose()`: claims end before their next record, handlers finish their
      record, marks and acknowledgements are committed, and the members leave, all within `close_timeout`.
    - The second one cancels the handlers at once; marks are still committed and the members leave.
    - The third one ends the process at once: nothing more is committed, and the members do not leave.

    `contexts` are asynchronous context managers, one or several, that are entered before the groups and queues and exited after
    them: a server of probes (`asyncgroup.telemetry.serve_probes`), a pool of connections.

    The first two need the event loop. If a handler blocks it and never yields, they have no effect, and the third one ends
    the process; only code in C that does not return to Python has to be ended with SIGKILL.

    Returns the exit code: 128 + the number of the first signal, as shells do (130 for Ctrl-C, 143 for SIGTERM), or 0 if
    all were closed without a signal. A program that does not pass it to `sys.exit` exits with 0 after a regular
    shutdown, as most supervisors expect. No KeyboardInterrupt is raised.

    Raises what entering and running them raise, including the handler's exception itself: the first error closes the others.
    Raises ConfigError, before it connects, if a group or queue is another object or a handler cannot be called with a delivery;
    UsageError if an event loop is already running: use `await group.run(topics, handler)` or `await queue.run(handle)` there. In
    a thread other than the main one, signals are not handled.
    """
    jobs = given if given and all(isinstance(each, tuple) for each in given) else (given,)
    programs = [_program(*job) for job in jobs]
    entered = _contexts(contexts)
    instead = "`async with queue` and `await queue.run(handle)`"
    if len(jobs[0]) == 3:
        instead = "`async with group` and `await group.run(topics, handler)`"
    _check_no_loop("run", instead)
    program = Program([each for each, _ in programs], [work for _, work in programs], entered)
    return asyncio.run(program.run())


def run_queue(queue: WorkQueue, handle: DeliveryHandler) -> int:
    """Handle deliveries until Ctrl-C or SIGTERM; the same as `asyncgroup.run(queue, handle)`, which says the rest."""
    from asyncgroup.workqueue.work_queue import WorkQueue

    if not isinstance(queue, WorkQueue):
        raise wrong_type(
            "queue", queue, "a WorkQueue: run_queue(WorkQueue(servers, group_id, topics), handle)"
        )
    consumer, work = _program(queue, handle)
    _check_no_loop("run_queue", "`async with queue` and `await queue.run(handle)`")
    return asyncio.run(Program([consumer], [work]).run())


Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def _program(consumer: Any = None, *arguments: Any) -> tuple[ProgramConsumer, Work]:
    """Return what is entered, and what runs then. Raises ConfigError for what is neither a group nor a queue."""
    from asyncgroup.group.consumer_group import ConsumerGroup

    if isinstance(consumer, ConsumerGroup):
        if len(arguments) != 2:
            raise ConfigError("handler", arguments, "topics and a handler: run(group, topics, handler)")
        topics, handler = arguments
        return consumer, lambda: consumer.run(topics, handler)
    from asyncgroup.workqueue.work_queue import WorkQueue

    if not isinstance(consumer, WorkQueue):
        allowed = "a ConsumerGroup: run(ConsumerGroup(servers, group_id), topics, handler)"
        raise wrong_type("group", consumer, allowed)
    from asyncgroup.workqueue.workers import check_handler

    if len(arguments) != 1:
        raise ConfigError("handle", arguments, "a handler: run(queue, handle)")
    (handle,) = arguments
    check_handler(handle)
    return consumer, lambda: consumer.run(handle)


def _contexts(given: Contexts) -> list[AbstractAsyncContextManager[Any]]:
    """Return the context managers. Raises ConfigError for another object."""
    several = [given] if isinstance(given, AbstractAsyncContextManager) else given
    found = list(several) if isinstance(several, Iterable) else [several]
    for each in found:
        if not isinstance(each, AbstractAsyncContextManager):
            raise wrong_type(
                "contexts", each, "asynchronous context managers, such as serve_probes(8080, group)"
            )
    return found


def _check_no_loop(call: str, instead: str) -> None:
    """Raise UsageError if an event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{call}() starts an event loop, but one is already running: use {instead}")


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
    """Runs groups and work queues as a program: `works[n]()` of `consumers[n]` ends when that is closed."""

    def __init__(
        self,
        consumers: Sequence[ProgramConsumer],
        works: Sequence[Work],
        contexts: Sequence[AbstractAsyncContextManager[Any]] = (),
    ) -> None:
        self._consumers = consumers
        self._works = works
        self._contexts = contexts  # entered before them, and exited after them
        self._signals: list[signal.Signals] = []
        self._is_open = False  # whether all were entered
        self._closing: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Run the program and return its exit code."""
        names = ", ".join(each.group_id for each in self._consumers)
        work = start_task(self._work(), name=f"{names}: run")

        def on_signal(number: signal.Signals) -> None:
            self._signals.append(number)
            if len(self._signals) == 1 and self._is_open:
                self._closing = start_task(self._close(), name="close")
                _log.info("group %s: %s, closing", names, number.name)
            elif not work.cancelling():  # the second signal, or the first one before all are open
                work.cancel()

        with on_signals(on_signal, handled=2):
            try:
                await wait_shielded(work)
            except asyncio.CancelledError:
                # cancelled by a signal: the exit code says so
                if not self._signals:
                    raise
            if self._closing is not None:
                await self._closing
        return 128 + self._signals[0] if self._signals else 0

    async def _close(self) -> None:
        """Close all at the same time; then raise the first error of a close."""
        for error in await self._close_all():
            raise error

    async def _close_all(self) -> list[BaseException]:
        """Close all at the same time; return the errors."""
        closed = await asyncio.gather(*(each.aclose() for each in self._consumers), return_exceptions=True)
        return [error for error in closed if error is not None]

    async def _work(self) -> None:
        async with AsyncExitStack() as stack:
            for context in self._contexts:
                await stack.enter_async_context(context)
            # closed last: members need it until they have left
            for cluster in _clusters(self._consumers):
                await stack.enter_async_context(cluster)
            for consumer in self._consumers:
                await stack.enter_async_context(consumer)
            self._is_open = True
            if len(self._works) == 1:
                await self._works[0]()
            else:
                await self._run_all()

    async def _run_all(self) -> None:
        """Run all; the first error ends the others in order, and is raised."""
        tasks = [start_task(work(), name="run") for work in self._works]
        errors: list[BaseException] = []
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            errors += _errors(tasks)
            if not all(task.done() for task in tasks):
                of_close = await self._close_all()
                await asyncio.wait(tasks)  # also those whose close has failed: their handlers may still run
                # what follows from the first error does not take its place, also if that of an earlier job comes later
                errors += [*_errors(tasks), *of_close]
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await wait_shielded(asyncio.gather(*tasks, return_exceptions=True))
            raise
        first = errors[0] if errors else None
        for error in dict.fromkeys(errors):
            if error is not first:
                _log.error("another error while the program ended: %s", describe_error(error))
        if first is not None:
            raise first


def _errors(tasks: Iterable[asyncio.Task[None]]) -> list[BaseException]:
    """Return what tasks have raised so far."""
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    return [error for task in ended if (error := task.exception()) is not None]


def _clusters(consumers: Sequence[Any]) -> list[Any]:
    """Return the Clusters that were passed to the consumers and are not open."""
    from asyncgroup.cluster import Cluster

    found: dict[int, Any] = {}
    for consumer in consumers:
        servers = getattr(consumer, "_servers", None)
        if isinstance(servers, Cluster) and not servers.is_open:
            found[id(servers)] = servers  # once, if several share it
    return list(found.values())
