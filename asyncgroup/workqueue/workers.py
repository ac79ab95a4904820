"""Workers: run a handler for each delivery, a limited number at a time; WorkerPools: all workers of a queue.

A worker is a task that handles one delivery after another. Workers are created when they are needed: an idle queue has one
with any `concurrency`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Final, TypeAlias

from asyncgroup.checks import is_async
from asyncgroup.errors import ClosedError, ConfigError
from asyncgroup.lifecycle import describe_error, start_task, wait_shielded
from asyncgroup.log_events import log_fields
from asyncgroup.topic_partition import TopicPartition
from asyncgroup.workqueue.delivery import Delivery, DeliveryState, Work
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.outcomes import Outcomes
from asyncgroup.workqueue.receiver import TURN, Receiver

__all__ = ["DeliveryHandler", "FailureLog", "WorkerPools", "Workers", "check_handler", "signature_error"]

_log = logging.getLogger("asyncgroup.workqueue")

_CALLER: Final = ContextVar[object]("asyncgroup: the workers of a handler", default=None)

DeliveryHandler: TypeAlias = Callable[[Delivery], Awaitable[object]]
"""An async function that handles a delivery: acknowledged when it returns, nacked when it raises."""


def check_handler(handle: object) -> None:
    """Raise ConfigError unless it is an async function (delivery), or an object with such a `__call__`."""
    if isinstance(handle, type) or not callable(handle):
        raise ConfigError("handle", handle, "an async function (delivery)")
    if not is_async(handle):
        allowed = "an async function (delivery); for one that blocks, in_thread(function)"
        raise ConfigError("handle", handle, allowed)
    if (error := signature_error(handle)) is not None:
        allowed = f"an async function that is called with one argument, the delivery ({error})"
        raise ConfigError("handle", handle, allowed)


def signature_error(function: Callable[..., object]) -> str | None:
    """Return why a function cannot be called with a delivery alone; None if it can, or if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of compiled code
        return None
    try:
        signature.bind(None)
    except TypeError as error:
        return str(error)
    return None


class _Worker:
    """A task, and the delivery that it handles now."""

    __slots__ = ("delivery", "interrupted", "task")

    def __init__(self) -> None:
        self.delivery: Delivery | None = None
        self.interrupted = False
        """Whether the handler was cancelled because its delivery has ended, and not the worker."""
        self.task: asyncio.Task[None] | None = None


class Workers:
    """Handles deliveries until the queue closes. Raises what ended it; a handler's own exception nacks its delivery."""

    def __init__(
        self,
        outcomes: Outcomes,
        receiver: Receiver,
        handle: DeliveryHandler,
        concurrency: int,
        *,
        cancels_expired: bool,
    ) -> None:
        check_handler(handle)
        self._outcomes = outcomes
        self._receiver = receiver
        self._handle = handle
        self.concurrency = concurrency
        """Handlers that run at a time, at most."""
        self._cancels_expired = cancels_expired
        self._workers: set[_Worker] = set()
        self._failures = FailureLog()
        self._busy: dict[int, _Worker] = {}  # by id() of their deliveries
        self._idle = 0
        self._failure: BaseException | None = None
        self._ended = asyncio.Event()
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._turn_end = 0.0  # loop time at which the workers give the event loop a turn
        self._is_turn_over = False  # and `_begin_turn` is scheduled

    def __repr__(self) -> str:
        return f"<Workers: {len(self._busy)} busy, {self.concurrency} at most>"

    @property
    def busy(self) -> int:
        """The number of handlers that run."""
        return len(self._busy)

    @property
    def free(self) -> int:
        """The number of handlers that may be started now."""
        return self.concurrency - len(self._busy)

    @property
    def is_caller(self) -> bool:
        """Whether the caller is a handler, or a task that a handler has started."""
        return _CALLER.get() is self

    def handles(self, work: Work) -> bool:
        """Whether a handler runs for a delivery of this partition, also for one that is lost."""
        return any(
            worker.delivery is not None and worker.delivery._work is work for worker in self._busy.values()
        )

    def has(self, delivery: Delivery) -> bool:
        """Whether a handler runs for this delivery."""
        return id(delivery) in self._busy

    # --- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle deliveries until the queue closes; cancellation cancels the handlers, and waits for them."""
        try:
            self._start_worker()
            await self._ended.wait()
        finally:
            await self._stop()
        if self._failure is not None:
            raise self._failure

    async def _stop(self) -> None:
        self._is_stopping = True  # a handler may swallow the cancellation of its worker
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await wait_shielded(asyncio.gather(*tasks, return_exceptions=True))

    def _start_worker(self) -> None:
        worker = _Worker()
        self._workers.add(worker)
        self._idle += 1
        worker.task = start_task(self._work(worker), name="work queue: worker")
        worker.task.add_done_callback(lambda task: self._on_done(worker, task))

    def _on_done(self, worker: _Worker, task: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._ended.set()
        elif not self._workers:
            self._ended.set()

    async def _work(self, worker: _Worker) -> None:
        _CALLER.set(self)
        receiver = self._receiver
        try:
            while not self._is_stopping:
                if self._loop.time() >= self._turn_end:
                    await self._next_turn()
                delivery = await receiver.receive()
                self._idle -= 1
                if not self._idle and len(self._workers) < self.concurrency:
                    self._start_worker()
                await self._run_handler(worker, delivery)
                self._idle += 1
        except ClosedError:
            if not receiver.is_ended:
                raise

    async def _next_turn(self) -> None:
        """Give the event loop a turn: handlers that never wait leave it none, as long as there are records."""
        while self._loop.time() >= self._turn_end and not self._is_stopping:
            # one turn for all workers: if each of them began its own, they would follow each other within one of the loop's
            if not self._is_turn_over:
                self._is_turn_over = True
                self._loop.call_soon(self._begin_turn)
            await asyncio.sleep(0)

    def _begin_turn(self) -> None:
        self._is_turn_over, self._turn_end = False, self._loop.time() + TURN

    # --- one delivery ----------------------------------------------------------------------------------------------------

    async def _run_handler(self, worker: _Worker, delivery: Delivery) -> None:
        worker.delivery, worker.interrupted, has_returned = delivery, False, False
        self._busy[id(delivery)] = worker
        delivery._has_handler = (
            True  # until `end_handler` the next record of its key, or in order, is not delivered
        )
        delivery._work.handlers += 1
        try:
            await self._handle(delivery)
            has_returned = True
        except asyncio.CancelledError as error:
            self._on_cancelled(worker, delivery, error)
        except Exception as error:  # noqa: BLE001  any exception of the handler is a nack
            self._on_error(delivery, error)
        except BaseException:  # it ends `run`, and perhaps the program
            if delivery.state is DeliveryState.ACQUIRED:
                self._outcomes.release(delivery)
            raise
        finally:
            del self._busy[id(delivery)]
            worker.delivery = None
            self._outcomes.end_handler(delivery, has_returned=has_returned)
            if worker.interrupted and delivery.state is DeliveryState.EXPIRED:
                self._outcomes.repeat_expired(delivery)
            if delivery.state is DeliveryState.LOST or not delivery._work.is_open:
                delivery._work.engine.on_drain()
        if worker.interrupted:
            await self._absorb_cancellation(worker)

    def _on_error(self, delivery: Delivery, error: BaseException) -> None:
        self._failures.failed(delivery, error)
        if delivery.state is DeliveryState.ACQUIRED:
            self._outcomes.nack(delivery, None, error)

    def _on_cancelled(self, worker: _Worker, delivery: Delivery, error: asyncio.CancelledError) -> None:
        """A cancelled handler is neither done nor failed; one that raises CancelledError by itself has failed."""
        task = worker.task
        assert task is not None
        if worker.interrupted:
            return
        if task.cancelling():
            if delivery.state is DeliveryState.ACQUIRED:
                self._outcomes.release(delivery)
            raise error
        self._on_error(delivery, error)

    async def _absorb_cancellation(self, worker: _Worker) -> None:
        """The handler was cancelled and not the worker: it goes on with the next delivery."""
        assert worker.task is not None
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancellation that the handler has not received arrives here
        if worker.task.uncancel() > 0:  # the worker itself was also cancelled
            raise asyncio.CancelledError

    # --- interruptions -----------------------------------------------------------------------------------------------------

    def interrupt(self, deliveries: Iterable[Delivery]) -> None:
        """Cancel the handlers of deliveries that have ended."""
        for delivery in deliveries:
            worker = self._busy.get(id(delivery))
            if worker is not None and not worker.interrupted and worker.task is not None:
                worker.interrupted = True
                worker.task.cancel()

    def interrupt_all(self, work: Work) -> None:
        """Cancel the handlers of a partition, also those that go on after the end of their deliveries."""
        deliveries = [worker.delivery for worker in self._busy.values() if worker.delivery is not None]
        self.interrupt(delivery for delivery in deliveries if delivery._work is work)

    def on_expired(self, delivery: Delivery) -> bool:
        """Cancel the handler of an expired delivery; return whether its record waits for the handler's end."""
        if not self._cancels_expired or not self.has(delivery):
            return False
        self.interrupt([delivery])
        return True


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
        self._dispatcher.ready.set_slots(slots or None)

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


INTERVAL: Final = 1.0
"""Minimum seconds between two warnings: a traceback takes as long as dozens of deliveries."""


class FailureLog:
    """Logs a failed delivery with its traceback (WARNING), then for a second only their number; with DEBUG all of them."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._next_at = 0.0
        self._omitted = 0

    def __repr__(self) -> str:
        return f"<FailureLog: {self._omitted} not logged>"

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Log that the handler of a delivery has raised `error`."""
        now = self._time()
        if now < self._next_at:
            self._omitted += 1
            _log.debug("the handler of %r raised %s", delivery, describe_error(error), exc_info=error)
            return
        more = f" ({self._omitted} more since the last message)" if self._omitted else ""
        self._next_at, self._omitted = now + INTERVAL, 0
        record = delivery.record
        tp = TopicPartition(record.topic, record.partition)
        _log.warning(
            "the handler of %r raised %s%s",
            delivery,
            describe_error(error),
            more,
            exc_info=error,
            extra=log_fields("delivery_failed", tp=tp, offset=record.offset, error=error),
        )
