"""Background tasks of an object, and helpers for waiting, cancellation and errors of tasks.

Each public object has one owner task, which ends its other tasks (`BackgroundTasks`). `async with` on the object starts
the owner task and waits until it runs; leaving the block signals it and waits for its end. So no task group is held
open between `__aenter__` and `__aexit__`, which a fixture or an exit stack may call from different tasks.

Tasks are started by `start_task`.

`SingleFlight` is work in a separate task, shared by concurrent callers.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

from asyncgroup.errors import AsyncGroupError, ClosedError

__all__ = [
    "BackgroundTasks",
    "SingleFlight",
    "add_note",
    "await_shared",
    "cancel_and_wait",
    "copy_error",
    "describe_error",
    "mark_retrieved",
    "run_until",
    "start_task",
    "wait_shielded",
    "wait_within",
]

_log = logging.getLogger("asyncgroup")

_ALWAYS_LAZY: Final[bool] = sys.version_info < (3, 12)
"""Whether no task factory can run a task's first step at once, since Python does not support it."""

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Ts = TypeVarTuple("Ts")


def start_task(work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Return a new task; its first step is never run by this call, but in a later turn of the event loop.

    Callers record the task, or what it works on, after this call. `asyncio.create_task` runs the first step at once if the
    program has set `asyncio.eager_task_factory`, and the task may even have ended when it returns. Unlike the task group of
    anyio, a plain task can also be started from a callback of the event loop.
    """
    loop = asyncio.get_running_loop()
    if _ALWAYS_LAZY or loop.get_task_factory() is None:
        return loop.create_task(work, name=name)
    creating = [True]  # a list, since the coroutine may run before `create_task` returns
    task = loop.create_task(_run_later(work, creating), name=name)
    creating.clear()
    # a task that is cancelled before its first step does not close the coroutine inside
    task.add_done_callback(lambda _: work.close())
    return task


async def _run_later(work: Coroutine[Any, Any, T], creating: list[bool]) -> T:
    if creating:
        await asyncio.sleep(0)
    return await work


class BackgroundTasks:
    """The tasks of an object: `spawn` runs functions in tasks, which end at the latest with `stop`.

    An exception in a spawned function is a programming error and cancels all other tasks. `on_failure(error)` is called
    at once, so that the object can end instead of waiting for tasks that no longer run.
    """

    def __init__(self, name: str, on_failure: Callable[[Exception], None] | None = None) -> None:
        self.name = name
        self._on_failure = on_failure
        self._owner: asyncio.Task[None] | None = None
        self._accepts = False  # functions are spawned; also while the last tasks end
        self._children: dict[asyncio.Task[Any], bool] = {}
        """The running tasks in the order of their start, each with whether its function was called."""
        self._stop = asyncio.Event()
        self._failures: list[BaseException] = []
        """What spawned functions raised; after a `stop` only a copy of the first one, with notes."""
        self._is_raised = False  # a caller of `stop` got the first failure

    @property
    def is_open(self) -> bool:
        """Whether tasks can be spawned."""
        return self._accepts and not self._stop.is_set()

    def check_not_started(self, name: str | None = None) -> None:
        """Raise ClosedError if `start` was called before; `name` is the object to name, default its own."""
        if self._owner is not None:
            raise ClosedError(f"{name or self.name} was already entered; create a new one")

    async def start(self) -> None:
        """Start the owner task; return when tasks can be spawned. Raises ClosedError on a second call."""
        self.check_not_started()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = start_task(self._run(ready), name=f"{self.name}: owner")
        try:
            await asyncio.shield(ready)
        except BaseException:
            await self.stop()  # the cancelled caller's __aexit__ will not run, so nothing else would stop it
            raise

    def spawn(
        self, function: Callable[[*Ts], Coroutine[Any, Any, Any]], *args: *Ts, name: str | None = None
    ) -> None:
        """Run a coroutine function in a task; may be called in a callback of the event loop.

        After `stop` was called the function is cancelled at its first await. Raises ClosedError when the owner task isn't
        running.
        """
        if not self._accepts:
            raise ClosedError(f"{self.name} is closed")
        label = f"{self.name}: {name or function.__name__}"
        task = start_task(self._child(function, args), name=label)
        self._children[task] = False
        task.add_done_callback(self._on_done)

    async def stop(self) -> None:
        """Cancel all tasks and wait for them. May be called twice; a cancelled caller still waits until the end.

        Called from one of the spawned functions it only signals, as that function cannot wait for its own end. If
        spawned functions failed, raises the first error, with a note naming the others: the error itself to the first
        caller, a copy to each later one.
        """
        self._stop.set()
        task = asyncio.current_task()
        if self._owner is None or task is self._owner or task in self._children:
            return
        await wait_shielded(self._owner)
        if self._is_raised:
            raise copy_error(self._failures[0]) from None
        if self._failures:
            first = _first_of(self._failures)
            self._failures, self._is_raised = [copy_error(first)], True
            raise first from None

    async def _child(self, function: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._children[task] = True
        # spawned just before: the function is called nevertheless, as it may have a future to resolve
        if self._stop.is_set():
            task.cancel()
        try:
            await function(*args)
        except Exception as error:
            # first: a program's log filter that raises must not keep the object waiting for its tasks
            if self._on_failure is not None:
                self._on_failure(error)
            _log.exception("%s failed", task.get_name())
            raise

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        del self._children[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)
            self._stop.set()

    async def _run(self, ready: asyncio.Future[None]) -> None:
        self._accepts = True
        ready.set_result(None)
        try:
            await self._stop.wait()
        finally:
            self._stop.set()
            try:
                await self._end_children()
            finally:
                self._accepts = False

    async def _end_children(self) -> None:
        """Cancel all tasks and wait for them; a cancellation of the owner task is raised afterwards."""
        cancelled: asyncio.CancelledError | None = None
        for task, is_called in list(self._children.items()):
            if is_called:  # else `_child` does it
                task.cancel()
        while self._children:  # one may spawn another while it ends
            try:
                await wait_shielded(asyncio.gather(*self._children, return_exceptions=True))
                # of tasks that are done `gather` returns at once (3.12), before `_on_done` was called for them
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


def _first_of(errors: list[BaseException]) -> BaseException:
    """Return the first error, with a note for each of the others."""
    first, *others = (leaf for error in errors for leaf in _leaves(error))
    for other in others:
        add_note(first, f"at the same time: {describe_error(other)}")
    return first


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def wait_shielded(task: asyncio.Future[T]) -> T:
    """Wait for `task` and return its result; if the caller is cancelled, the cancellation is raised after the task ended.

    A cancelled anyio scope cancels again at every iteration of the event loop, so a shielded scope is used as well.
    """
    cancelled: asyncio.CancelledError | None = None
    import anyio  # late: pytest refuses plugins that were imported before it, and the embedded broker is

    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                if task.cancelled():
                    break
                # the task may have ended in the same iteration; the cancellation still counts
                cancelled = error
            except BaseException:  # noqa: BLE001  the task's own failure is raised below
                break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all have ended, even if the caller is cancelled; their errors are dropped."""
    for task in tasks:
        task.cancel()
    if tasks:
        await wait_shielded(asyncio.gather(*tasks, return_exceptions=True))


async def run_until(
    stop: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T], name: str
) -> asyncio.Task[T]:
    """Run `work` in a task until it ends or `stop` returns, which cancels it; return the task, which has ended.

    Both are cancelled and awaited when the caller is cancelled.
    """
    task = start_task(work, name=name)
    stopping = start_task(stop, name=f"{name}: until")
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(task, stopping)
    return task


async def wait_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait at most `seconds` (None: without limit) for an event; return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


def describe_error(error: BaseException) -> str:
    """Return the error as `Type: text`, even if its `__str__` raises."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001  a user's exception class may raise anything
        text = f"(its __str__ raised {type(broken).__name__})"
    return f"{kind}: {text}" if text else kind


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an error if possible: an exception that is a frozen dataclass refuses it."""
    try:
        error.add_note(text)
    except Exception:  # noqa: BLE001  its __setattr__ may raise anything
        _log.debug("%s does not accept the note: %s", type(error).__name__, text)


async def await_shared(future: asyncio.Future[T]) -> T:
    """Wait for a future that several tasks wait for, without cancelling it when the caller is cancelled.

    Raises a copy of the future's error for each caller: one exception object raised in several tasks would collect the
    tracebacks and notes of all of them.
    """
    if not future.done():
        await asyncio.wait([future])
    if not future.cancelled() and (error := future.exception()) is not None:
        raise copy_error(error)
    return future.result()


def copy_error(error: E) -> E:
    """Return a copy of an error with the same type, text, attributes, notes, cause and traceback.

    Returns the error itself if it cannot be copied (a foreign class whose constructor takes other arguments).
    """
    made: E
    try:
        if isinstance(error, AsyncGroupError):
            # Their constructors make `args` from other arguments, so copy.copy() would call them with the wrong ones.
            made = type(error).__new__(type(error), *error.args)
            made.__dict__.update(error.__dict__)
        else:
            made = copy.copy(error)
            made.args = error.args  # its constructor may have computed them from other arguments
        if hasattr(error, "__notes__"):
            made.__notes__ = list(error.__notes__)
    except Exception:  # noqa: BLE001  a constructor of a foreign class may raise anything
        return error
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made.with_traceback(error.__traceback__)


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Done callback that marks the exception as retrieved, since all callers that waited may have been cancelled."""
    if not future.cancelled():
        future.exception()


class SingleFlight(Generic[T]):
    """Runs `work` in its own task, at most one run at a time; a canceled caller does not stop the run.

    A call during a run waits for the next one, which it shares with all other calls made during that run. With
    `waits_a_turn` the first run begins one turn of the loop later, so that calls in that turn, caused by the same event,
    share it too.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[T]], *, waits_a_turn: bool = False) -> None:
        self._name = name
        self._work = work
        self._waits_a_turn = waits_a_turn
        self._task: asyncio.Task[None] | None = None  # does one run after another while there are callers
        self._next: asyncio.Future[T] | None = None  # result of the run that has not begun yet
        self._current: asyncio.Future[T] | None = None  # result of the run in progress
        self.is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "idle" if self._task is None else "running"
        return f"<SingleFlight {self._name}: {state}>"

    async def __call__(self) -> T:
        """Return the result of the next run; raise its error, or ClosedError."""
        if self.is_closed:
            raise ClosedError(f"{self._name} are closed")
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(mark_retrieved)
            if self._task is None:
                self._task = start_task(self._run(), name=self._name)
        return await await_shared(self._next)

    async def _run(self) -> None:
        current: asyncio.Future[T] | None = None
        try:
            if self._waits_a_turn:
                await asyncio.sleep(0)
            while (current := self._next) is not None:
                self._next, self._current = None, current
                try:
                    current.set_result(await self._work())
                except Exception as error:  # noqa: BLE001  raised to the callers
                    current.set_exception(error)
        finally:
            self._task = self._current = None
            for waiting in (current, self._next):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(ClosedError(f"{self._name} were closed"))
            self._next = None

    async def wait_run(self) -> None:
        """Wait for the end of the run in progress, which another one may follow at once."""
        if self._current is not None and not self._current.done():
            await asyncio.wait([self._current])

    async def wait_idle(self) -> None:
        """Wait until no run is in progress."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Cancel the run in progress and refuse further ones; safe to call twice."""
        self.is_closed = True
        if self._task is not None:
            await cancel_and_wait(self._task)
        if self._next is not None:  # the task was cancelled before its first step
            self._next.set_exception(ClosedError(f"{self._name} were closed"))
            self._next = self._task = None
