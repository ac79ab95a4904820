"""An event loop in virtual time: minutes of protocol time pass in milliseconds, and every run is the same.

The loop runs callbacks like any asyncio loop. When none is ready, an ordinary loop sleeps until the next timer; this
one sets its clock to that timer and continues (the model is trio's autojump clock). Network traffic goes through an
in-memory `Network`, so nothing outside the process influences the order of events.

Threads are the exception. While real work is under way (a job of `run_in_executor`, `asyncio.to_thread` or
`anyio.to_thread`, a watched file descriptor, a block of `real_work()`), the clock stands still and the loop waits for
the work in real time; otherwise every timeout would fire before the thread had its first time slice. A job that itself
waits for virtual time to pass therefore never ends: after `real_wait_limit` real seconds the loop raises
`VirtualDeadlock`. A thread that is started in another way and calls `call_soon_threadsafe` needs a `real_work()` block.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from asyncgroup.errors import UsageError
from asyncgroup.model import wall_clock
from asyncgroup.testing.virtual.errors import (
    VirtualDeadlock,
    VirtualLivelock,
    VirtualTimeLimit,
    describe_tasks,
)
from asyncgroup.testing.virtual.network import Network
from asyncgroup.testing.virtual.network_loop import InMemoryNetworkLoop
from asyncgroup.testing.virtual.ordered import OrderedDeadline, OrderedFuture, OrderedTask

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["VirtualTimeLoop", "current_network", "run_virtual"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_POLL_INTERVAL = 0.05
"""Real seconds between two checks whether real work is still under way: a thread may end without waking the loop."""


class _Select(Protocol):
    def __call__(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]: ...


class _AutojumpSelector(selectors.BaseSelector):
    """A selector whose `select` calls the loop's `_wait` instead of sleeping; all other methods use a real selector."""

    def __init__(self, poller: selectors.BaseSelector, wait: _Select) -> None:
        self._poller = poller
        self._loop_wait = wait

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._poller.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._poller.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._poller.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._poller.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._loop_wait(timeout)

    def close(self) -> None:
        self._poller.close()


class VirtualTimeLoop(InMemoryNetworkLoop):
    """An asyncio loop in virtual time with an in-memory network.

    `start`: the initial value of `time()` in seconds. `max_virtual_time`: seconds of virtual time after which the run
    ends with `VirtualTimeLimit` (None: never). `max_turns`: iterations of the loop at one instant before
    `VirtualLivelock`. `real_wait_limit`: real seconds to wait for real work that causes no callback, before
    `VirtualDeadlock`. `network`: the network to use, a new one if None; it belongs to one loop only. `time_of_day`: what
    `wall_clock()` shows at the start, in ms since 1970 (None: the time at which the loop is made).

    Runs are deterministic: timers of the same instant run in the order in which they were scheduled, and sets of tasks
    or futures iterate in the same order in every process.
    """

    if TYPE_CHECKING:  # attributes of the base class that typeshed does not declare
        _ready: deque[asyncio.Handle]
        _scheduled: list[asyncio.TimerHandle]

    def __init__(
        self,
        *,
        start: float = 0.0,
        max_virtual_time: float | None = 6 * 3600.0,
        max_turns: int = 1_000_000,
        real_wait_limit: float = 30.0,
        network: Network | None = None,
        time_of_day: int | None = None,
    ) -> None:
        self._now = start  # virtual seconds
        self._wall_clock_at_zero = (wall_clock() if time_of_day is None else time_of_day) - round(
            self._now * 1000
        )
        self._span = math.inf if max_virtual_time is None else max_virtual_time  # virtual seconds
        self._end = start + self._span  # virtual time of VirtualTimeLimit
        self._max_turns = max_turns
        self._turns = 0  # iterations since the clock last moved
        self._real_wait_limit = real_wait_limit  # real seconds
        self._real_jobs: dict[object, str] = {}  # real work under way, with its description
        self._timers_made = 0
        self._poller = selectors.DefaultSelector()
        super().__init__(_AutojumpSelector(self._poller, self._wait), network)
        self._own_descriptors = len(self._poller.get_map())  # the loop's own wake-up pipe
        self._waitables_made = 0  # futures and tasks; each hashes by its number
        self.set_task_factory(self._new_task)
        self._set_time(start)

    def __repr__(self) -> str:
        return f"<VirtualTimeLoop t={self._now:g} running={self.is_running()} closed={self.is_closed()}>"

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future, as in asyncio; it hashes by its order of creation."""
        self._waitables_made += 1
        return OrderedFuture(self._waitables_made, loop=self)

    def _new_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        work: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        **options: Any,
    ) -> asyncio.Task[_T]:
        self._waitables_made += 1
        return OrderedTask(self._waitables_made, work, loop=self, **options)

    # -- time -------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """The virtual clock in seconds; it moves only when nothing is ready to run."""
        return self._now

    def wall_clock(self) -> int:
        """Return the time of day in ms since 1970: `time_of_day` at the start, and from then on virtual time."""
        return self._wall_clock_at_zero + round(self._now * 1000)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule `callback` for the virtual time `when`; equal times keep the order of the calls."""
        self._timers_made += 1
        return super().call_at(OrderedDeadline(when, self._timers_made), callback, *args, context=context)

    def _set_time(self, now: float) -> None:
        self._now = now
        self._turns = 0
        # The base class runs every timer below `time() + _clock_resolution`. One unit in the last place is the smallest
        # value with which a timer of exactly `now` still runs, however large the clock's value is.
        self._clock_resolution = math.ulp(now)

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Replace `select(timeout)`: move the clock instead of sleeping.

        The base class passes 0 if callbacks are ready, else the time to the next timer, or None without timers.
        """
        if timeout is not None and timeout <= 0:
            return self._next_turn()
        # No callback is ready. While real work is under way, each pass waits up to _POLL_INTERVAL real seconds for a
        # callback that it causes; without real work the first pass moves the clock.
        for _ in range(math.ceil(self._real_wait_limit / _POLL_INTERVAL)):
            working = self._real_work_under_way()
            events = self._poller.select(_POLL_INTERVAL if working else 0)
            if events or self._ready:
                return events
            if not working:
                self._jump()
                return []
        raise self._deadlock(
            f"no callback for {self._real_wait_limit:g} real seconds from: {', '.join(self._real_work_names())}"
            " (the clock stands still while real work is under way)"
        )

    def _next_turn(self) -> list[tuple[selectors.SelectorKey, int]]:
        if self._real_jobs or self._watched():
            return self._poller.select(0)
        self._turns += 1
        if self._turns > self._max_turns and not self._real_work_under_way():
            self._turns = 0
            raise VirtualLivelock(
                f"{self._max_turns} iterations of the loop at t={self._now:g} s while the clock did not move: "
                f"a retry without delay? Tasks:\n{self._tasks()}"
            )
        return []

    def _jump(self) -> None:
        """Set the clock to the next timer."""
        when = float(self._scheduled[0].when()) if self._scheduled else math.inf
        if when == math.inf:
            raise self._deadlock("no callback is ready, no timer is scheduled and no real work is under way")
        if when > self._end:
            limit = self._end
            self._end = when + self._span  # cleanup after the error gets the same limit once more
            raise VirtualTimeLimit(
                f"the next timer (t={when:g} s) is after max_virtual_time (t={limit:g} s): some work repeats without "
                f"end, or the test needs a larger max_virtual_time. Tasks:\n{self._tasks()}"
            )
        self._set_time(when)

    def _deadlock(self, reason: str) -> VirtualDeadlock:
        faults = "".join(f"\nfault in effect: {fault}" for fault in self.network.describe_faults())
        return VirtualDeadlock(f"t={self._now:g} s: {reason}. Waiting tasks:\n{self._tasks()}{faults}")

    def _tasks(self) -> str:
        return describe_tasks(asyncio.all_tasks(self)) or "  (none)"

    # -- threads and other real work --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def real_work(self, name: str = "real work") -> Iterator[None]:
        """Stop the clock and wait in real time while the block runs.

        For work in threads that the loop does not know. Enter it on the loop's thread; `name` appears in errors.
        """
        key = object()
        self._real_jobs[key] = name
        try:
            yield
        finally:
            del self._real_jobs[key]

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """As in asyncio; the clock stands still until the job is done or its future is cancelled."""
        future = super().run_in_executor(executor, func, *args)
        key = object()
        self._real_jobs[key] = f"executor job {getattr(func, '__qualname__', repr(func))}"
        future.add_done_callback(lambda _: self._real_jobs.pop(key, None))
        return future

    def run_computation(self, function: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
        """Run a computation at once, which on an ordinary loop runs in a thread (`asyncgroup.off_loop`).

        It takes no virtual time. In a thread it would end at a time that depends on the machine.
        """
        return function(*args)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002  see below
        """As in asyncio, without a time limit: joining the threads is real work, so no virtual timeout could fire."""
        with self.real_work("shutdown of the default executor"):
            await super().shutdown_default_executor()

    def _real_work_under_way(self) -> bool:
        return bool(self._real_jobs) or self._watched() > 0 or _anyio_jobs(self) > 0

    def _real_work_names(self) -> list[str]:
        names = list(self._real_jobs.values())
        if watched := self._watched():
            names.append(f"{watched} watched file descriptor(s)")
        if jobs := _anyio_jobs(self):
            names.append(f"{jobs} job(s) of anyio.to_thread")
        return names

    def _watched(self) -> int:
        """The number of watched descriptors besides the loop's own wake-up pipe."""
        return len(self._poller.get_map()) - self._own_descriptors


def run_virtual(
    main: Coroutine[Any, Any, _T],
    *,
    start: float = 0.0,
    max_virtual_time: float | None = 6 * 3600.0,
    network: Network | None = None,
    debug: bool | None = None,
) -> _T:
    """Run `main` on a new `VirtualTimeLoop`, as `asyncio.run` does on an ordinary one, and return its result.

    Raises what `main` raises, or a `VirtualTimeError`. Parameters are those of `VirtualTimeLoop`.
    """
    factory = functools.partial(
        VirtualTimeLoop, start=start, max_virtual_time=max_virtual_time, network=network
    )
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        return runner.run(main)


def current_network() -> Network:
    """Return the network of the running virtual loop. Raises `UsageError` on any other loop."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise UsageError(f"the running loop must be a VirtualTimeLoop (@pytest.mark.virtual); it is {loop!r}")
    return loop.network


def _anyio_jobs(loop: asyncio.AbstractEventLoop) -> int:
    """The number of jobs that anyio's worker threads of `loop` have; anyio does not use `run_in_executor`."""
    if "anyio._backends._asyncio" not in sys.modules:
        return 0
    jobs = 0
    for thread in threading.enumerate():
        queue = getattr(thread, "queue", None)
        if queue is not None and getattr(thread, "loop", None) is loop:
            # the request to stop a thread is a job in its queue that is never marked as done
            jobs += max(0, getattr(queue, "unfinished_tasks", 0) - bool(getattr(thread, "stopping", False)))
    return jobs
