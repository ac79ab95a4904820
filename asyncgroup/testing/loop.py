"""An event loop whose clock jumps: minutes of protocol time pass in milliseconds, the same way every time.

The loop runs callbacks like any asyncio loop. When none is ready, an ordinary loop sleeps until the next timer; this
one sets its clock to that timer and goes on (the model is trio's autojump clock). Network traffic goes through an
in-memory `Network`, so nothing outside the process has a say in the order of events.

Threads are the one way in which the real world takes part. While real work is under way - a job of
`run_in_executor`, `asyncio.to_thread` or `anyio.to_thread`, a watched file descriptor, a block of `real_work()` - the
clock stands still and the loop waits for it in real time; otherwise every timeout would fire before a thread had its
first time slice. A job that itself waits for virtual time to pass therefore never ends: the loop gives it
`real_wait_limit` seconds and raises `VirtualDeadlock`. A thread of your own that calls `call_soon_threadsafe` has to
be announced with `real_work()`.
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
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from asyncgroup.errors import UsageError
from asyncgroup.testing.clock import AutojumpSelector, OrderedDeadline
from asyncgroup.testing.errors import VirtualDeadlock, VirtualLivelock, VirtualTimeLimit, describe_tasks
from asyncgroup.testing.network import Network
from asyncgroup.testing.network_loop import InMemoryNetworkLoop
from asyncgroup.testing.ordered import OrderedFuture, OrderedTask

__all__ = ["VirtualTimeLoop", "current_network", "run_virtual"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_POLL_INTERVAL = 0.05
"""Real seconds between two looks at whether real work is still under way (a thread may end without a word)."""


class VirtualTimeLoop(InMemoryNetworkLoop):
    """An asyncio loop in virtual time with an in-memory network.

    `start`: what `time()` says at first, in seconds. `max_virtual_time`: seconds of virtual time after which the run
    ends with `VirtualTimeLimit` (None: never). `max_turns`: turns of the loop at one instant before
    `VirtualLivelock`. `real_wait_limit`: real seconds to wait for a silent thread before `VirtualDeadlock`.
    `network`: the network to use, a new one if None; it belongs to one loop only.

    Timers of the same instant run in the order in which they were scheduled, and sets of tasks or futures are walked in
    an order that is the same in every process: a run depends on nothing outside of it.
    """

    if TYPE_CHECKING:  # what the base class keeps and typeshed does not tell
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
    ) -> None:
        self._now = start
        self._span = math.inf if max_virtual_time is None else max_virtual_time
        self._end = start + self._span
        self._max_turns = max_turns
        self._turns = 0
        self._real_wait_limit = real_wait_limit
        self._real_jobs: dict[object, str] = {}
        self._timers_made = 0
        self._poller = selectors.DefaultSelector()
        super().__init__(AutojumpSelector(self._poller, self._wait), network)
        self._own_descriptors = len(self._poller.get_map())
        self._waitables_made = 0
        self.set_task_factory(self._new_task)
        self._set_time(start)

    def __repr__(self) -> str:
        return f"<VirtualTimeLoop t={self._now:g} running={self.is_running()} closed={self.is_closed()}>"

    def create_future(self) -> asyncio.Future[Any]:
        """A future, as in asyncio."""
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

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule `callback` for the virtual time `when`; equal times keep the order of the calls."""
        self._timers_made += 1
        return super().call_at(OrderedDeadline(when, self._timers_made), callback, *args, context=context)

    def _set_time(self, now: float) -> None:
        self._now = now
        self._turns = 0
        # The base class runs every timer below `time() + _clock_resolution`. One unit in the last place is the least
        # that still lets a timer of exactly `now` run, at any size of the clock.
        self._clock_resolution = math.ulp(now)

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Stand in for `select(timeout)`: 0 when callbacks are ready, otherwise the time to the next timer or None."""
        if timeout is not None and timeout <= 0:
            return self._next_turn()
        for _ in range(math.ceil(self._real_wait_limit / _POLL_INTERVAL)):
            working = self._real_work_under_way()
            events = self._poller.select(_POLL_INTERVAL if working else 0)
            if events or self._ready:
                return events
            if not working:
                self._jump()
                return []
        raise self._deadlock(
            f"nothing came for {self._real_wait_limit:g} real seconds from: {', '.join(self._real_work_names())}"
            " (the clock stands still while real work is under way)"
        )

    def _next_turn(self) -> list[tuple[selectors.SelectorKey, int]]:
        if self._real_jobs or self._watched():
            return self._poller.select(0)
        self._turns += 1
        if self._turns > self._max_turns and not self._real_work_under_way():
            self._turns = 0
            raise VirtualLivelock(
                f"{self._max_turns} turns of the loop at t={self._now:g} s and the clock never moved: "
                f"a retry without delay? Tasks:\n{self._tasks()}"
            )
        return []

    def _jump(self) -> None:
        """Set the clock to the next timer."""
        when = float(self._scheduled[0].when()) if self._scheduled else math.inf
        if when == math.inf:
            raise self._deadlock("no callback is ready, no timer is scheduled and no real work is under way")
        if when > self._end:
            limit, self._end = (
                self._end,
                when + self._span,
            )  # so that clean-up after the error has time of its own
            raise VirtualTimeLimit(
                f"the next timer (t={when:g} s) lies beyond max_virtual_time (t={limit:g} s). "
                f"Something repeats for ever, or the test needs a larger max_virtual_time. Tasks:\n{self._tasks()}"
            )
        self._set_time(when)

    def _deadlock(self, reason: str) -> VirtualDeadlock:
        faults = "".join(f"\nfault in effect: {fault}" for fault in self.network.describe_faults())
        return VirtualDeadlock(f"t={self._now:g} s: {reason}. Tasks that wait:\n{self._tasks()}{faults}")

    def _tasks(self) -> str:
        return describe_tasks(asyncio.all_tasks(self)) or "  (none)"

    # -- threads and other real work --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def real_work(self, name: str = "real work") -> Iterator[None]:
        """Keep the clock still and wait in real time while the block is open.

        For threads that the loop cannot know of. The block belongs to the loop's thread; `name` shows in errors.
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
        """Run a computation that an ordinary loop leaves to a thread (`asyncgroup.wire.off_loop`) at once.

        It takes no virtual time, and a thread would end at a moment that depends on the machine.
        """
        return function(*args)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002  see below
        """As in asyncio, without a time limit: the joining is real work, during which no virtual timeout can fire."""
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
        """How many descriptors are watched besides the loop's own wake-up pipe."""
        return len(self._poller.get_map()) - self._own_descriptors


def run_virtual(
    main: Coroutine[Any, Any, _T],
    *,
    start: float = 0.0,
    max_virtual_time: float | None = 6 * 3600.0,
    network: Network | None = None,
    debug: bool | None = None,
) -> _T:
    """Run `main` on a fresh `VirtualTimeLoop`, as `asyncio.run` does on an ordinary one, and return its result.

    Raises what `main` raises, or a `VirtualTimeError`. Parameters are those of `VirtualTimeLoop`.
    """
    factory = functools.partial(
        VirtualTimeLoop, start=start, max_virtual_time=max_virtual_time, network=network
    )
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        return runner.run(main)


def current_network() -> Network:
    """The network of the running virtual loop. Raises `UsageError` on any other loop."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise UsageError(f"this needs a VirtualTimeLoop (@pytest.mark.virtual), and runs on {loop!r}")
    return loop.network


def _anyio_jobs(loop: asyncio.AbstractEventLoop) -> int:
    """How many jobs anyio's worker threads of `loop` have; anyio does not go through `run_in_executor`."""
    if "anyio._backends._asyncio" not in sys.modules:
        return 0
    jobs = 0
    for thread in threading.enumerate():
        queue = getattr(thread, "queue", None)
        if queue is not None and getattr(thread, "loop", None) is loop:
            # a thread told to stop has that order in its queue, and it never counts as done
            jobs += max(0, getattr(queue, "unfinished_tasks", 0) - bool(getattr(thread, "stopping", False)))
    return jobs
