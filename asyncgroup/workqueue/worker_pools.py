"""WorkerPools: the workers of a queue, or those of all its local consumers together."""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.workers import Workers

__all__ = ["WorkerPools"]


class WorkerPools:
    """All Workers that run now. While any do, the records of a partition are handled one by one in modes with an order."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._pools: list[Workers] = []

    def __repr__(self) -> str:
        return f"<WorkerPools: {len(self._pools)}, {self.busy} handlers run>"

    @property
    def busy(self) -> int:
        """The number of handlers that run."""
        return sum(pool.busy for pool in self._pools)

    @property
    def free(self) -> int:
        """The number of handlers that may be started now; 1 if loops receive the deliveries."""
        return sum(pool.free for pool in self._pools) if self._pools else 1

    @property
    def is_caller(self) -> bool:
        """Whether the caller is a handler, or a task that a handler has started."""
        return any(pool.is_caller for pool in self._pools)

    async def run(self, workers: Workers) -> None:
        """Handle deliveries with these workers, see `Workers.run`."""
        self._pools.append(workers)
        self._update()
        try:
            await workers.run()
        finally:
            self._pools.remove(workers)
            self._update()

    def _update(self) -> None:
        self._dispatcher.set_serial(serial=bool(self._pools))
        slots = sum(pool.concurrency for pool in self._pools)
        self._dispatcher.turns.set_slots(slots or None)

    def handles(self, work: Work) -> bool:
        """Whether a handler runs for a delivery of this partition, also for one that is lost."""
        return any(pool.handles(work) for pool in self._pools)

    def has(self, delivery: Delivery) -> bool:
        """Whether a handler runs for this delivery."""
        return any(pool.has(delivery) for pool in self._pools)

    def interrupt(self, deliveries: Iterable[Delivery]) -> None:
        """Cancel the handlers of deliveries that have ended."""
        ended = list(deliveries)
        for pool in self._pools:
            pool.interrupt(ended)

    def interrupt_all(self, work: Work) -> None:
        """Cancel all handlers of a partition, also those that go on after the end of their deliveries."""
        for pool in self._pools:
            pool.interrupt_all(work)

    def on_expired(self, delivery: Delivery) -> bool:
        """Cancel the handler of an expired delivery; return whether its record waits for the handler's end."""
        return any(pool.on_expired(delivery) for pool in self._pools)
