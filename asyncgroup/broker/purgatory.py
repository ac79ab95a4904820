"""Requests that wait for something: parked under watch keys, with a deadline (Kafka's
`DelayedOperationPurgatory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

__all__ = ["Parked", "Purgatory", "resolve"]

T = TypeVar("T")


def resolve(future: asyncio.Future[T], make: Callable[[], T]) -> None:
    """Answer a request that waited: what `make()` returns or raises is the future's outcome.

    One request's error never reaches another request, which completed it. A future that is done, as of a client that has
    gone, stays as it is.
    """
    if future.done():
        return
    try:
        answer = make()
    except Exception as error:  # noqa: BLE001  logged and answered where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(answer)


class Parked:
    """One parked request: its answer is `future`, set by `finish` at the deadline or once `is_ready` says so.

    What either of them raises is the future's exception: it never reaches the request that triggered the check.
    Cancelling the future, as a connection that ends does, takes the request out of the purgatory.
    """

    __slots__ = ("_finish", "_is_ready", "future", "keys", "timer")

    def __init__(
        self,
        keys: tuple[Hashable, ...],
        future: asyncio.Future[object],
        is_ready: Callable[[], bool],
        finish: Callable[[], object],
    ) -> None:
        self.keys = keys
        self.future = future
        self._is_ready = is_ready
        self._finish = finish
        self.timer: asyncio.TimerHandle | None = None

    def try_complete(self) -> bool:
        """Answer if the wait is over."""
        if not self.future.done():
            try:
                ready = self._is_ready()
            except Exception as error:  # noqa: BLE001  as in `resolve`
                self.future.set_exception(error)
                return True
            if ready:
                self.complete()
        return self.future.done()

    def complete(self) -> None:
        """Answer now."""
        resolve(self.future, self._finish)

    def drop(self) -> None:
        """Give up without an answer."""
        self.future.cancel()


class Purgatory:
    """The parked requests of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchers: dict[Hashable, dict[Parked, None]] = {}  # ordered, so that a run can be replayed

    def __repr__(self) -> str:
        return f"<Purgatory {len(self)} parked>"

    def __len__(self) -> int:
        return len({parked for watchers in self._watchers.values() for parked in watchers})

    def park(
        self,
        keys: Iterable[Hashable],
        timeout: float,
        is_ready: Callable[[], bool],
        finish: Callable[[], object],
    ) -> asyncio.Future[object]:
        """Wait until `is_ready()`, asked at each `check` of one of `keys`, or for `timeout` seconds.

        The future's result is what `finish()` returns at that moment, its exception what either function raises.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        parked = Parked(tuple(keys), future, is_ready, finish)
        parked.timer = self._loop.call_later(timeout, parked.complete)
        for key in parked.keys:
            self._watchers.setdefault(key, {})[parked] = None
        future.add_done_callback(lambda _future: self._forget(parked))
        return future

    def check(self, key: Hashable) -> None:
        """Something happened to `key`: answer the requests that waited for it."""
        watchers = self._watchers.get(key)
        if watchers:
            for parked in [p for p in list(watchers) if p.try_complete()]:
                self._forget(parked)

    def drop_all(self) -> None:
        """Give up all parked requests, as a node does that dies."""
        for watchers in list(self._watchers.values()):
            for parked in list(watchers):
                parked.drop()
        self._watchers.clear()

    def _forget(self, parked: Parked) -> None:
        if parked.timer is not None:
            parked.timer.cancel()
            parked.timer = None  # a timer knows its action, which knows the request: no circle may stay
        for key in parked.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(parked, None)
                if not watchers:
                    del self._watchers[key]
