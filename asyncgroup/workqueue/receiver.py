"""Receiver: hands deliveries to the tasks that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from asyncgroup.errors import ClosedError
from asyncgroup.lifecycle import copy_error
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.interceptors import QueueInterceptors

__all__ = ["Deliveries", "Receiver", "Waiters"]

TURN: Final = 0.01
"""Seconds after which a loop over deliveries that never waits gives the event loop a turn."""


class Waiters:
    """The tasks that wait for a delivery, woken in the order in which they began to wait. They look again, and may find none."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_waking = False
        self.on_demand = asyncio.Event()
        """Set when a task begins to wait: with `receiver_queue=0` records are fetched for it then."""

    def __repr__(self) -> str:
        return f"<Waiters: {len(self._waiting)} tasks>"

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> None:
        """Wait until a record may have become ready, or the queue ends."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        self.on_demand.set()
        try:
            await waiter
        except asyncio.CancelledError:
            # it was woken for a record, and does not take it
            if waiter.done() and not waiter.cancelled():
                self.wake(1)  # another task takes the record
            elif waiter in self._waiting:  # a wake-up in the same turn has dropped it
                self._waiting.remove(waiter)
            raise

    def wake(self, records: int) -> None:
        """Wake as many tasks as there are records, those first that have waited for the longest time."""
        waiting = self._waiting
        while records > 0 and waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                records -= 1

    def wake_later(self, ready: Callable[[], int]) -> None:
        """As `wake`, in the next turn of the event loop, for `ready()` records: the caller may take one itself until then."""
        # one wake-up for all records of this turn: `ready` counts them when it runs
        if self._waiting and not self._is_waking:
            self._is_waking = True
            self._loop.call_soon(self._wake_now, ready)

    def _wake_now(self, ready: Callable[[], int]) -> None:
        self._is_waking = False
        self.wake(ready())

    def wake_all(self) -> None:
        """The queue ends."""
        self.wake(len(self._waiting))
        self.on_demand.set()


class Receiver:
    """Gives deliveries to tasks that wait for them, in the order in which they began to wait.

    `source()` returns the next delivery or None. A delivery is taken only after all waiting is done, so a cancelled wait loses none.
    """

    def __init__(
        self,
        group_id: str,
        source: Callable[[], Delivery | None],
        waiters: Waiters,
        interceptors: QueueInterceptors,
    ) -> None:
        self._group_id = group_id
        self._source = source
        self._interceptors = interceptors
        self._intercepts = bool(interceptors)
        self._loop = asyncio.get_running_loop()
        self._turn_end = 0.0
        self.waiters = waiters
        """The tasks that wait for a delivery."""
        self.failure: BaseException | None = None
        """What ended the queue, or None."""
        self.is_ended = False
        """Whether no more deliveries begin."""
        self.is_read = False
        """Whether deliveries were received by `receive`, a loop or a batch, and not only by handlers."""

    def __repr__(self) -> str:
        return f"<Receiver of {self._group_id!r}: {len(self.waiters)} tasks wait>"

    def take(self) -> Delivery | None:
        """Return the next delivery, or None if no record may be delivered now."""
        while not self.is_ended and (delivery := self._source()) is not None:
            if not self._intercepts or self._interceptors.before_consume(delivery):
                return delivery
        return None

    async def receive_own(self) -> Delivery:
        """As `receive`; a close by another task waits until the caller has ended the delivery."""
        self.is_read = True
        await self.give_turn()
        delivery = await self.receive()
        delivery._reader = asyncio.current_task()
        return delivery

    async def give_turn(self) -> None:
        """Give the event loop a turn from time to time: a caller that finds records each time never waits otherwise."""
        if self._loop.time() >= self._turn_end:
            await asyncio.sleep(0)
            self._turn_end = self._loop.time() + TURN

    async def receive(self) -> Delivery:
        """Wait for the next delivery. Raises ClosedError after the end, and the failure that ended the queue."""
        while True:
            if (delivery := self.take()) is not None:
                return delivery
            self.check_open()
            await self.waiters.wait()

    def check_open(self) -> None:
        """Raise ClosedError after the end, or the failure that ended the queue."""
        if self.failure is not None:
            raise copy_error(self.failure)
        if self.is_ended:
            raise ClosedError(f"work queue of group {self._group_id!r} is closed")

    def end(self, failure: BaseException | None) -> None:
        """Begin no more deliveries; raise `failure` to tasks that wait or call later (None: the queue was closed)."""
        if not self.is_ended:
            self.is_ended = True
            self.failure = failure
            self.waiters.wake_all()


class Deliveries:
    """The async iterator over the deliveries of a queue; a cancelled or broken loop loses none."""

    __slots__ = ("_reader", "_receiver", "_time", "_turn_at")

    def __init__(self, receiver: Receiver) -> None:
        receiver.is_read = True
        self._receiver = receiver
        self._reader = asyncio.current_task()
        self._time = asyncio.get_running_loop().time
        self._turn_at = 0.0

    def __repr__(self) -> str:
        return f"<Deliveries of {self._receiver!r}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next delivery. Raises StopAsyncIteration after the close, and the failure that ended the queue."""
        receiver = self._receiver
        if self._time() >= self._turn_at:
            self._reader = asyncio.current_task()
            await asyncio.sleep(0)
            self._turn_at = self._time() + TURN
        # `take`, without a call for each record where nothing is asked
        is_plain = not receiver._intercepts and not receiver.is_ended
        if (delivery := receiver._source() if is_plain else receiver.take()) is None:
            try:
                delivery = await receiver.receive()
            except ClosedError:
                raise StopAsyncIteration from None
            self._turn_at = self._time() + TURN
        delivery._reader = self._reader
        return delivery
