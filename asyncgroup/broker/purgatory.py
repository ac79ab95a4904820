"""Parked requests, each with watch keys and a deadline (Kafka's `DelayedOperationPurgatory`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["DelayedOperation", "Purgatory", "complete_future", "new_future"]

T = TypeVar("T")


def new_future(_of: type[T]) -> asyncio.Future[T]:
    """Return a future for a response of type `_of`."""
    return asyncio.get_running_loop().create_future()


def complete_future(future: asyncio.Future[T], make: Callable[[], T]) -> None:
    """Complete a parked request's future with what `make()` returns or raises.

    An exception must not reach the request whose action triggered the completion. A future that is already done, for
    instance canceled because the client disconnected, is left unchanged.
    """
    if future.done():
        return
    try:
        answer = make()
    except Exception as error:  # noqa: BLE001  logged and turned into a response where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(answer)


@dataclass(slots=True, eq=False)
class DelayedOperation:
    """A parked request (Kafka's `DelayedOperation`): `finish` makes its response at the deadline or once `is_ready()`.

    An exception of either function becomes the future's exception: it must not reach the request that triggered the
    check. Canceling the future, as a closed connection does, removes the request from the purgatory.
    """

    keys: tuple[Hashable, ...]
    future: asyncio.Future[object]
    is_ready: Callable[[], bool]
    finish: Callable[[], object]
    timer: asyncio.TimerHandle | None = None

    def try_complete(self) -> bool:
        """Complete the request if it is ready; return whether it is done."""
        if not self.future.done():
            try:
                ready = self.is_ready()
            except Exception as error:  # noqa: BLE001  as in `complete_future`
                self.future.set_exception(error)
                return True
            if ready:
                self.complete()
        return self.future.done()

    def complete(self) -> None:
        """Complete the request now."""
        complete_future(self.future, self.finish)

    def drop(self) -> None:
        """Cancel the request; it gets no response."""
        self.future.cancel()


class Purgatory:
    """The parked requests of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        """The parked requests by watch key, in order, so that runs are reproducible; a key without any is absent."""

    def __repr__(self) -> str:
        return f"<Purgatory {len(self)} parked>"

    def __len__(self) -> int:
        return len({parked for watchers in self.watchers.values() for parked in watchers})

    def park(
        self,
        keys: Iterable[Hashable],
        timeout: float,
        is_ready: Callable[[], bool],
        finish: Callable[[], object],
    ) -> asyncio.Future[object]:
        """Park a request until `is_ready()` or for `timeout` seconds; return the future of its response.

        `is_ready` is called at each `check_and_complete` of one of `keys`. The future's result is what `finish()` then
        returns, its exception what either function raises.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        parked = DelayedOperation(tuple(keys), future, is_ready, finish)
        parked.timer = self._loop.call_later(timeout, parked.complete)
        for key in parked.keys:
            self.watchers.setdefault(key, {})[parked] = None
        future.add_done_callback(lambda _future: self._remove(parked))
        return future

    def check_and_complete(self, key: Hashable) -> None:
        """Complete the requests watching `key` that are ready; called when the state of `key` has changed."""
        watchers = self.watchers.get(key)
        if watchers:
            for parked in [p for p in list(watchers) if p.try_complete()]:
                self._remove(parked)

    def drop_all(self) -> None:
        """Cancel all parked requests, as when the node stops."""
        for watchers in list(self.watchers.values()):
            for parked in list(watchers):
                parked.drop()
        self.watchers.clear()

    def _remove(self, parked: DelayedOperation) -> None:
        if parked.timer is not None:
            parked.timer.cancel()
            parked.timer = None  # break the reference cycle of timer, action and request
        for key in parked.keys:
            watchers = self.watchers.get(key)
            if watchers is not None:
                watchers.pop(parked, None)
                if not watchers:
                    del self.watchers[key]
