"""PartitionWork: the records of one partition between their arrival and their acknowledgement. Pure state.

A record is in exactly one place, which is its state (`DeliveryState`): ready (`fresh` or `retries`), waiting for an earlier one of its
key (`key_queues`), acquired (`acquired`), failed while its handler still runs (`held`), waiting for its time (`waiting`), being copied
(`publishing`, a number), or done (the window). `Dispatcher` and `Outcomes` make the moves.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.delivery_result import AckOutcome
from asyncgroup.workqueue.partition_engine import DeliveryGuard, PartitionEngine

__all__ = ["PartitionWork"]

_NO_RECORDS: Final[deque[Record]] = deque(maxlen=0)
"""In `key_queues`: one record of the key is ready, acquired or waiting for its time, and there is no later one."""

RECORD_OVERHEAD: Final = 560
"""Approximate bytes of a delivered record besides key, value and headers: the Record, its delivery, its place in a heap and in dicts."""

HEADER_OVERHEAD: Final = 150
"""Approximate bytes of a header besides its name and value."""

COPY_OVERHEAD: Final = 4100
"""Approximate bytes of a copy that is being written, besides its value: its headers, and the task that writes it, which
is larger from Python 3.12 on."""


class _OpenDelivery(Protocol):
    """What a partition reads of its deliveries; `delivery.py` imports this file."""

    record: Record
    deadline: float | None


D = TypeVar("D", bound=_OpenDelivery)


class PartitionWork(Generic[D]):
    """The records of one partition, from one assignment to its revocation; D is the class Delivery.

    - `window`: the acknowledged positions, and the numbers of failed deliveries of the others.
    - `position`: the offset after the last record that has arrived; by default the first one that is not acknowledged.
    - `engine`: the engine's side of the partition.
    """

    def __init__(
        self,
        tp: TopicPartition,
        window: AckWindow,
        *,
        position: int | None = None,
        engine: PartitionEngine | None = None,
    ) -> None:
        self.tp = tp
        self.window = window
        self.engine = engine or PartitionEngine()
        self.position = window.base if position is None else position
        """The offset after the last record that has arrived."""
        self.fresh: deque[Record] = deque()
        """Ready records that were not delivered before; in modes with an order in offset order."""
        self.retries: deque[Record] = deque()
        """Ready records that were delivered before."""
        self.key_queues: dict[bytes, deque[Record]] = {}
        """In Mode.KEY_SHARED: the records that wait for an earlier one of their key, for each key that has one."""
        self.acquired: dict[int, D] = {}
        """The open deliveries (those that have begun and not ended) by offset, in the order of their deadlines."""
        self.waiting: dict[int, Record] = {}
        """The records that wait for a delay or a delivery time, by offset."""
        self.wait_numbers: dict[int, int] = {}
        """The number of the entry of each of them in DueTimes."""
        self.delayed: set[int] = set()
        """Records of `waiting` that wait for the delivery time in their headers, and not after a failed delivery."""
        self.held: dict[int, tuple[D, float]] = {}
        """The deliveries that have failed while their handlers still run, by offset, and the loop time for which their records
        wait after the handler's end; infinity if its ack timeout has passed, so that it fails then."""
        self.publishing = 0
        """Number of records that are being copied to another topic."""
        self.blocked = 0
        """Number of records in `key_queues`."""
        self.parked = 0
        """Number of deliveries that wait for permits of a local consumer."""
        self.handlers = 0
        """Number of handlers of `run` that have not returned."""
        self.renewals = 0
        """Number of calls of `Delivery.renew`: while it grows, the open deliveries are being worked on."""
        # what `open_for` last saw: the first delivery, its deadline, and when it was first seen there
        self._first_open: tuple[D, float | None, float] | None = None
        self.is_open = True
        """Whether records are delivered: until the partition is revoked."""
        self.is_live = False
        """Whether outcomes count: from `Dispatcher.add_partition` until it is removed, or has come back as another assignment."""
        self.is_fresh_queued = False
        """Whether the partition is queued for its fresh records (`ReadyPartitions`)."""
        self.is_retry_queued = False
        """Whether it is for its retries."""
        self.has_copies = self.engine.has_copies
        """Whether its records are copies in a retry topic: their headers count earlier deliveries and say when they are due."""
        self.guard: DeliveryGuard | None = None
        """Asked before a record is delivered; None while the engine delays none."""
        self.bytes = 0
        """Bytes of memory for the records that have arrived and are not acknowledged, as if all were delivered, and their copies."""
        self.refill_at = -1
        """`engine.on_capacity` is called when `unread` has fallen to this number."""
        self.refill_bytes = -1
        """`engine.on_capacity` is called when `bytes` has fallen to this number."""

    def __repr__(self) -> str:
        return (
            f"<PartitionWork {self.tp}: {self.queued} queued, {len(self.acquired)} acquired, "
            f"{len(self.waiting)} waiting, {self.window!r}>"
        )

    def size_of(self, record: Record) -> int:
        """Return the bytes that a record counts in `bytes`: also before its delivery what it takes after that."""
        size = len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD
        for name, value in record.headers:
            size += len(name) + len(value or b"") + HEADER_OVERHEAD
        return size

    @property
    def queued(self) -> int:
        """The number of records that have arrived and are not acquired."""
        return len(self.fresh) + len(self.retries) + self.blocked + self.parked

    @property
    def unread(self) -> int:
        """The number of queued records that were never delivered, or wait for an earlier one of their key."""
        return len(self.fresh) + self.blocked + self.parked

    @property
    def is_idle(self) -> bool:
        """Whether it has no open delivery, no record that is being copied, and no handler that is being cancelled."""
        return not self.acquired and not self.held and not self.publishing

    @property
    def is_next_in_order(self) -> bool:
        """Whether every record that was delivered is done, so that the next one in offset order may follow."""
        return self.is_idle and len(self.waiting) == len(self.delayed)

    def may_grow(self, record: Record) -> bool:
        """Whether a record above a full window may be delivered: if it was delivered before, or if no other record can shrink the window."""
        return record.offset in self.window.attempts or (self.is_next_in_order and not self.retries)

    async def commit(self) -> AckOutcome:
        """Commit the acknowledgements now."""
        return await self.engine.commit()

    def note_unread(self) -> None:
        """Ask for more records if `unread` has fallen to `refill_at`."""
        if self.refill_at >= 0 and self.unread <= self.refill_at:
            self.refill_at = -1  # until it is filled
            self.engine.on_capacity()

    def end_hold(self, delivery: D) -> tuple[Record, float]:
        """The handler of a failed delivery has ended: return its record, and the time that it waits for."""
        record = delivery.record
        return record, self.held.pop(record.offset)[1]

    def park(self) -> None:
        """A delivery waits for permits of a local consumer: it is queued."""
        self.parked += 1

    def unpark(self) -> None:
        """It goes to an inbox, or has ended."""
        self.parked -= 1
        self.note_unread()

    def insert_retry(self, record: Record) -> None:
        """Add a ready record to `retries` in offset order, after those of `fresh` that precede it."""
        while self.fresh and self.fresh[0].offset < record.offset:
            _insert(self.retries, self.fresh.popleft())
        _insert(self.retries, record)

    def insert_fresh(self, record: Record) -> None:
        """Add a ready record to `fresh` in offset order."""
        _insert(self.fresh, record)

    def overdue(self, now: float) -> tuple[list[D], float]:
        """Return the deliveries whose ack timeout has passed, and the next deadline, infinity if there is none."""
        found: list[D] = []
        for delivery in self.acquired.values():
            deadline = delivery.deadline
            if deadline is None:  # in the inbox of a local consumer
                continue
            if deadline > now:
                return found, deadline
            found.append(delivery)
        return found, math.inf

    def open_for(self, now: float) -> float:
        """Return for how many seconds the delivery that was not renewed for longest is open, as far as calls of this have seen it.

        A delivery has no time of its beginning, which would cost each record: the call that sees it first counts as that.
        """
        first, seen = next(iter(self.acquired.values()), None), self._first_open
        if first is None:
            self._first_open = None
            return 0.0
        # a delivery of the same record and attempt may be another one, after a seek; a renewed one has another deadline
        if seen is None or seen[0] is not first or seen[1] != first.deadline:
            seen = self._first_open = (first, first.deadline, now)
        return now - seen[2]

    def repeat_in_order(self, records: Iterable[Record]) -> None:
        """Make these records ready again with all others that are ready, or wait after a failed delivery, in offset order."""
        again = {record.offset: record for record in records}
        again |= {at: failed for at, failed in self.waiting.items() if at not in self.delayed}
        again |= {kept.offset: kept for kept in (*self.retries, *self.fresh)}
        self._keep_waiting(self.delayed)
        self.fresh = deque()
        # one queue, so that the order stays: `retries` has the last record that was delivered before, and all records before it
        self.retries = deque(again[offset] for offset in sorted(again))

    def _keep_waiting(self, offsets: set[int]) -> None:
        self.waiting = {at: self.waiting[at] for at in offsets}
        self.wait_numbers = {at: self.wait_numbers[at] for at in offsets}

    # --- keys: at most one record of a key is ready, acquired or waiting for its time ------------------------------------

    def enter_key_queue(self, key: bytes, record: Record) -> bool:
        """Return whether the record may be delivered; otherwise it waits for an earlier one of its key."""
        queue = self.key_queues.get(key)
        if queue is None:
            self.key_queues[key] = _NO_RECORDS
            return True
        if queue is _NO_RECORDS:
            queue = self.key_queues[key] = deque()
        queue.append(record)
        self.blocked += 1
        return False

    def leave_key_queue(self, key: bytes) -> Record | None:
        """Return the next record of a key whose last one is done; None if there is none."""
        queue = self.key_queues.get(key)
        if not queue:
            self.key_queues.pop(key, None)
            return None
        self.blocked -= 1
        record = queue.popleft()
        if not queue:
            self.key_queues[key] = _NO_RECORDS
        return record

    def take_before(self, offset: int) -> list[Record]:
        """Remove and return the records below `offset` that were delivered and are to be delivered again."""
        failed = {at: record for at, record in self.waiting.items() if at < offset and at not in self.delayed}
        for at in failed:
            del self.waiting[at], self.wait_numbers[at]
        for queue in (self.retries, self.fresh):
            while queue and queue[0].offset < offset:
                record = queue.popleft()
                failed[record.offset] = record
        return [failed[at] for at in sorted(failed)]

    # --- changes of the log and of the owner ------------------------------------------------------------------------------

    def drop_ready(self) -> None:
        """Forget the records that are not acquired: the partition's next owner reads them again."""
        self.fresh.clear()
        self.retries.clear()
        self.waiting.clear()
        self.wait_numbers.clear()
        self.delayed.clear()
        self.key_queues.clear()
        self.blocked = 0
        self.bytes = sum(self.size_of(delivery.record) for delivery in self.acquired.values())
        self.bytes += self.publishing * COPY_OVERHEAD

    def withdraw(self) -> tuple[list[Record], list[Record]]:
        """Forget the records that are neither delivered nor being copied; return those that lead their keys, and those that wait for one."""
        leading = [*self.fresh, *self.retries, *self.waiting.values()]
        blocked = [record for queue in self.key_queues.values() for record in queue]
        self.key_queues = dict.fromkeys(self.key_queues, _NO_RECORDS)
        self.fresh.clear()
        self.retries.clear()
        self._keep_waiting(set())
        self.delayed.clear()
        self.blocked = 0
        self.bytes -= sum(map(self.size_of, (*leading, *blocked)))
        return leading, blocked

    def clear(self, offset: int = 0) -> tuple[list[D], list[Record]]:
        """Forget all records from `offset` on; return their deliveries that have not ended, and those that were ready or waited."""
        held = (*self.acquired.values(), *(delivery for delivery, _ in self.held.values()))
        lost = [delivery for delivery in held if delivery.record.offset >= offset]
        dropped = [
            record
            for record in (*self.fresh, *self.retries, *self.waiting.values())
            if record.offset >= offset
        ]
        self.acquired = {at: delivery for at, delivery in self.acquired.items() if at < offset}
        self.held = {at: held for at, held in self.held.items() if at < offset}
        self.fresh = deque(record for record in self.fresh if record.offset < offset)
        self.retries = deque(record for record in self.retries if record.offset < offset)
        self._keep_waiting({at for at in self.waiting if at < offset})
        self.delayed = {at for at in self.delayed if at < offset}
        for key, queue in list(self.key_queues.items()):
            kept = deque(record for record in queue if record.offset < offset)
            self.blocked -= len(queue) - len(kept)
            self.bytes -= sum(self.size_of(record) for record in queue if record.offset >= offset)
            self.key_queues[key] = kept or _NO_RECORDS
        self.bytes -= sum(map(self.size_of, (*dropped, *(delivery.record for delivery in lost))))
        self.position = min(self.position, offset)
        return lost, dropped


def _insert(queue: deque[Record], record: Record) -> None:
    if not queue or queue[-1].offset < record.offset:
        queue.append(record)
    elif queue[0].offset > record.offset:
        queue.appendleft(record)
    else:
        insort(queue, record, key=lambda each: each.offset)
