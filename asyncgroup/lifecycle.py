"""Ownership of tasks: each public object has one owner task that holds its task group; and waiting for their ends.

`async with` on the object starts the owner and waits until it stands; leaving signals it and joins it. So no task group
is ever held open between enter and exit of somebody else's context, where a fixture or an exit stack may run the two
ends in different tasks.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from asyncgroup.errors import AsyncGroupError, ClosedError

__all__ = [
    "Owner",
    "cancel_and_wait",
    "describe",
    "finish",
    "note",
    "own_copy",
    "result_of_shared",
    "retrieve",
    "run_until",
    "wait_within",
]

_log = logging.getLogger("asyncgroup")

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Ts = TypeVarTuple("Ts")


class Owner:
    """The owner task of an object; `spawn` runs functions in its task group until `stop`.

    A spawned function that raises takes all others down, since it is a programming error: `on_failure(error)` hears
    of it at once, so that the object can end instead of waiting for work that nobody does any more.
    """

    def __init__(self, name: str, on_failure: Callable[[Exception], None] | None = None) -> None:
        self.name = name
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._group: TaskGroup | None = None
        self._children: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def is_open(self) -> bool:
        """Whether tasks can be spawned."""
        return self._group is not None and not self._stop.is_set()

    async def start(self) -> None:
        """Start the owner task; returns when tasks can be spawned. Raises ClosedError on a second call."""
        if self._task is not None:
            raise ClosedError(f"{self.name} was entered before; make a new one")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(ready), name=f"{self.name}: owner")
        try:
            await asyncio.shield(ready)
        except BaseException:
            await self.stop()  # a caller cancelled here never gets to the exit that would stop it
            raise

    def spawn(
        self, function: Callable[[*Ts], Coroutine[Any, Any, Any]], *args: *Ts, name: str | None = None
    ) -> None:
        """Run a coroutine function in the owner's group; between `stop` and the end it is cancelled at once.

        Raises ClosedError when the owner isn't running.
        """
        if self._group is None:
            raise ClosedError(f"{self.name} is closed")
        label = f"{self.name}: {name or function.__name__}"
        self._group.start_soon(self._child, function, args, name=label)

    async def stop(self) -> None:
        """Cancel what runs and wait for it; safe to call twice, and carried to its end when the caller is cancelled.

        Called from one of the spawned functions it only signals: that function cannot wait for its own end. Raises
        what a spawned function raised, if one failed (the first one, with a note naming the others): the first caller
        that error itself, each later one a copy of it.
        """
        self._stop.set()
        task = asyncio.current_task()
        if self._task is None or task is self._task or task in self._children:
            return
        try:
            await finish(self._task)
        except BaseExceptionGroup as group:
            if self._failure is not None:
                raise own_copy(self._failure) from None
            first = _first_of(group)
            self._failure = own_copy(first)
            raise first from None

    async def _child(self, function: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._children.add(task)
        try:
            await function(*args)
        except Exception as error:
            _log.exception("%s failed", task.get_name())
            if self._on_failure is not None:
                self._on_failure(error)
            raise
        finally:
            self._children.discard(task)

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                ready.set_result(None)
                await self._stop.wait()
                group.cancel_scope.cancel()
        finally:
            self._group = None
            self._stop.set()


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, which names the others in a note."""
    first, *others = _leaves(group)
    for other in others:
        note(first, f"at the same time: {describe(other)}")
    return first


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def finish(task: asyncio.Future[T]) -> T:
    """Wait for `task` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    A cancelled anyio scope cancels again at every turn of the loop, so it is shut out while waiting.
    """
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                if task.cancelled():
                    break
                cancelled = error  # also in the turn in which the task ended: it must not be lost
            except BaseException:  # noqa: BLE001  the task's own failure is raised below
                break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all have ended, even if the caller is cancelled meanwhile; their errors are dropped."""
    for task in tasks:
        task.cancel()
    if tasks:
        await finish(asyncio.gather(*tasks, return_exceptions=True))


async def run_until(
    stop: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T], name: str
) -> asyncio.Task[T]:
    """Run `work` in a task until it ends, or until `stop` returns: then it is cancelled. Gives the task, which has ended.

    Both are cancelled and waited for when the caller is cancelled.
    """
    task = asyncio.create_task(work, name=name)
    stopping = asyncio.create_task(stop, name=f"{name}: until")
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(task, stopping)
    return task


async def wait_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, for at most `seconds` (None: without limit); whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


def describe(error: BaseException) -> str:
    """The error in one line, `Type: text`; a user's exception may fail even at that."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001  what it raises is the user's, too
        text = f"(its text cannot be had: {type(broken).__name__})"
    return f"{kind}: {text}" if text else kind


def note(error: BaseException, text: str) -> None:
    """Add a note to an error, if it takes one: a frozen dataclass does not."""
    try:
        error.add_note(text)
    except Exception:  # noqa: BLE001  whatever its __setattr__ does
        _log.debug("%s takes no note: %s", type(error).__name__, text)


async def result_of_shared(future: asyncio.Future[T]) -> T:
    """Wait for a future that several tasks wait for; a caller that is cancelled does not cancel it.

    Raises the future's error, as a copy for each caller: one exception raised in several tasks would collect the
    tracebacks and notes of all of them.
    """
    if not future.done():
        await asyncio.wait([future])
    if not future.cancelled() and (error := future.exception()) is not None:
        raise own_copy(error)
    return future.result()


def own_copy(error: E) -> E:
    """Return a copy of an error: type, text, attributes, notes, cause and traceback so far are the same.

    The error itself is returned where it cannot be copied (a foreign class whose constructor takes other arguments).
    """
    made: E
    try:
        if isinstance(error, AsyncGroupError):
            # Their constructors make `args` from other arguments, so copy.copy() would call them with the wrong ones.
            made = type(error).__new__(type(error), *error.args)
            made.__dict__.update(error.__dict__)
        else:
            made = copy.copy(error)
            made.args = error.args  # its constructor may have made them of another value
        if hasattr(error, "__notes__"):
            made.__notes__ = list(error.__notes__)
    except Exception:  # noqa: BLE001  a constructor of a foreign class may raise anything
        return error
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made.with_traceback(error.__traceback__)


def retrieve(future: asyncio.Future[Any]) -> None:
    """A done callback that marks a failure as seen: those who waited for it may all have been cancelled."""
    if not future.cancelled():
        future.exception()
