"""Dispatcher: which record is delivered next, and what follows when a delivery ends. Synchronous and pure.

It knows no broker and no task: partitions are given to it as `PartitionWork`, time by `clock`, and what it cannot do
itself are callbacks. Ready records are handed out in turn from each partition. Records that were delivered before get at
most `retry_share` of the turns and of the slots, so that endless nacks do not starve fresh records.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from asyncgroup.errors import UsageError
from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import AckOutcome, Delivery, DeliveryState, Publisher
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.statistics import QueueCounts

__all__ = ["Dispatcher"]

_NEVER: Final = float("inf")


class Dispatcher:
    """The state of a work queue over all its partitions.

    - `delay_of(failures)` is the delay in seconds before a record is delivered again (`Backoff.delay`).
    - `on_ready()` is called when a record has become ready, `on_due(time)` when a record waits until an earlier loop time
      than all others, `on_expired(delivery)` when the ack timeout of a delivery has passed, and `on_ack()` for each record
      that is done.
    """

    def __init__(
        self,
        mode: Mode,
        clock: Callable[[], float],
        publisher: Publisher,
        delay_of: Callable[[int], float],
        *,
        ack_timeout: float | None = None,
        retry_share: float = 0.3,
        slots: int | None = None,
        allow_out_of_order: bool = False,
        ordering_key: Callable[[Record], bytes | None] = lambda record: record.key,
        due_delay: Callable[[Record], float] | None = None,
    ) -> None:
        self.mode = mode
        self.publisher = publisher
        self._ordering_key = ordering_key
        self.counts = QueueCounts()
        self.works: dict[object, PartitionWork] = {}
        self.on_ready: Callable[[], None] = lambda: None
        self.on_due: Callable[[float], None] = lambda _: None
        self.on_expired: Callable[[Delivery], bool] = lambda _: False
        self.on_ack: Callable[[], None] = lambda: None
        self.serial = False
        """Whether at most one record of a partition is in hand: handlers run in offset order."""
        self._clock = clock
        self._delay_of = delay_of
        self._due_delay = due_delay  # seconds that a record waits when it arrives (delayed delivery)
        self.ack_timeout = ack_timeout
        self._has_lanes = mode is Mode.KEY_SHARED
        self._holds_lanes = not allow_out_of_order
        self._retry_gain = retry_share / (1 - retry_share) if retry_share < 1 else _NEVER
        self._retry_slots = None if slots is None else max(1, int(slots * retry_share))
        self._retry_credit = (
            0.0  # of turns; a retry costs 1, a fresh record gains `_retry_gain` while retries are ready
        )
        self._retries_in_hand = 0
        self._fresh_ring: deque[PartitionWork] = deque()  # partitions with fresh records, the next one first
        self._retry_ring: deque[PartitionWork] = deque()
        self._due: list[tuple[float, int, PartitionWork, Record]] = []  # a heap
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<Dispatcher {self.mode.value}: {len(self.works)} partitions, {len(self._due)} waiting>"

    @property
    def in_hand(self) -> int:
        """The number of deliveries that are not ended."""
        return sum(len(work.in_hand) for work in self.works.values())

    def key_of(self, record: Record) -> bytes | None:
        """Return the record's ordering key."""
        return self._ordering_key(record)

    # --- partitions -----------------------------------------------------------------------------------------------------

    def add_partition(self, work: PartitionWork) -> None:
        """Take up a partition that was assigned."""
        self.works[work.tp] = work

    def close_partition(self, work: PartitionWork) -> None:
        """Hand out no more records of a partition that is revoked; deliveries in hand may still be ended."""
        work.is_open = False
        work.fresh.clear()
        work.retries.clear()
        work.waiting.clear()
        work.lanes.clear()
        work.blocked = 0

    def remove_partition(self, work: PartitionWork) -> list[Delivery]:
        """Forget a partition; return the deliveries in hand, which are lost."""
        self.close_partition(work)
        if self.works.get(work.tp) is work:
            del self.works[work.tp]
        return self.lose(work)

    def lose(self, work: PartitionWork, offset: int = 0) -> list[Delivery]:
        """Forget the records of a partition from `offset` on; return their deliveries in hand, which are lost."""
        lost = work.clear(offset)
        for delivery in lost:
            self._end(delivery, DeliveryState.LOST)
            self._free_lane(work, delivery.record)
        return lost

    # --- records arrive -------------------------------------------------------------------------------------------------

    def offer(self, work: PartitionWork, records: Iterable[Record]) -> None:
        """Take over records of a partition, in offset order. Those that are acknowledged already are dropped.

        Offsets without a record in between count as done: they were compacted away, or are transaction markers.
        """
        window, expected, fresh = work.window, work.position, work.fresh
        has_window = bool(window.attempts) or window.end > expected
        is_plain = not self._has_lanes and self._due_delay is None and not has_window
        for record in records:
            offset = record.offset
            if offset != expected:
                window.ack_range(expected, offset)
                work.on_change()
            expected = offset + 1
            if is_plain:
                fresh.append(record)
            elif offset not in window:
                self._arrive(work, record)
        work.position = expected
        if fresh and not work.in_fresh_ring:
            self._list_fresh(work)
        if fresh or work.retries:
            self.on_ready()

    def _arrive(self, work: PartitionWork, record: Record) -> None:
        if self._has_lanes:
            key = self._ordering_key(record)
            if key is not None and not work.enter_lane(key, record):
                return
        self._admit(work, record)

    def _admit(self, work: PartitionWork, record: Record) -> None:
        """Make a record ready that no earlier one of its key precedes; a delayed one waits for its time first."""
        if self._due_delay is not None and (delay := self._due_delay(record)) > 0:
            self._wait(work, record, self._clock() + delay)
        else:
            self._make_ready(work, record)

    def _make_ready(self, work: PartitionWork, record: Record) -> None:
        if work.window.attempts and record.offset in work.window.attempts:
            work.retries.append(record)
            if not work.in_retry_ring:
                work.in_retry_ring = True
                self._retry_ring.append(work)
        else:
            work.fresh.append(record)
            if not work.in_fresh_ring:
                self._list_fresh(work)

    def _list_fresh(self, work: PartitionWork) -> None:
        work.in_fresh_ring = True
        self._fresh_ring.append(work)

    # --- records are handed out -----------------------------------------------------------------------------------------

    def take(self) -> Delivery | None:
        """Return the next delivery, or None if no record may be delivered now."""
        if self._retry_ring and self._is_retrys_turn() and (found := self._take_retry()) is not None:
            return found
        ring = self._fresh_ring
        while ring:
            work = ring[0]
            if not work.fresh or not self._may_take(work, work.fresh[0]):
                ring.popleft()
                work.in_fresh_ring = False
                continue
            if self._retry_ring:
                self._retry_credit = min(self._retry_credit + self._retry_gain, 1.0)
            record = work.fresh.popleft()
            ring.rotate(-1)
            return self._hand_out(work, record, 1)
        return self._take_retry() if self._retry_ring and self._has_retry_slot() else None

    def _is_retrys_turn(self) -> bool:
        # in order, what is repeated precedes all that was not delivered yet
        return self.mode.in_order or (self._retry_credit >= 1.0 and self._has_retry_slot())

    def _has_retry_slot(self) -> bool:
        slots = self._retry_slots
        return self.mode.in_order or slots is None or self._retries_in_hand < slots

    def _take_retry(self) -> Delivery | None:
        ring = self._retry_ring
        while ring:
            work = ring[0]
            if not work.retries or not self._may_take(work, work.retries[0]):
                ring.popleft()
                work.in_retry_ring = False
                continue
            record = work.retries.popleft()
            ring.rotate(-1)
            self._retry_credit = max(0.0, self._retry_credit - 1.0)
            self._retries_in_hand += 1
            delivery = self._hand_out(work, record, work.window.attempts.get(record.offset, 0) + 1)
            delivery.is_retry = True
            return delivery
        return None

    def _may_take(self, work: PartitionWork, record: Record) -> bool:
        if not work.is_open or (self.serial and (work.in_hand or work.waiting or work.publishing)):
            return False
        if self.mode.in_order and work.retries and record is not work.retries[0]:
            return False
        return not work.is_full or record.offset < work.window.end or not work.in_hand

    def _hand_out(self, work: PartitionWork, record: Record, attempt: int) -> Delivery:
        timeout = self.ack_timeout
        deadline = None
        if timeout is not None:
            deadline = self._clock() + timeout
            if not work.in_hand:
                self.on_due(deadline)
        delivery = Delivery(record, attempt, deadline, work, self)
        work.in_hand[record.offset] = delivery
        self.counts.delivered += 1
        return delivery

    def relist(self, work: PartitionWork) -> None:
        """Hand out records of the partition again, after something that may have prevented it has changed."""
        if work.fresh and not work.in_fresh_ring:
            self._list_fresh(work)
        if work.retries and not work.in_retry_ring:
            work.in_retry_ring = True
            self._retry_ring.append(work)
        if work.fresh or work.retries:
            self.on_ready()

    # --- deliveries end ---------------------------------------------------------------------------------------------------

    def ack(self, delivery: Delivery) -> None:
        """The record is done."""
        work: PartitionWork = delivery._work
        delivery.state = DeliveryState.ACKED
        offset = delivery.record.offset
        del work.in_hand[offset]
        if delivery.is_retry:
            self._retries_in_hand -= 1
        work.window.ack(offset)
        self.counts.acked += 1
        self._done(work, delivery.record)

    def ack_cumulative(self, delivery: Delivery) -> None:
        """The record is done and all before it. Raises UsageError in modes without an order."""
        if not self.mode.in_order:
            allowed = f"mode {self.mode.value} has no order: acknowledge each record by itself"
            raise UsageError(f"ack_cumulative() of {delivery!r}: {allowed}")
        work: PartitionWork = delivery._work
        for offset in [at for at in work.in_hand if at < delivery.record.offset]:
            self.ack(work.in_hand[offset])
        self.ack(delivery)

    def nack(self, delivery: Delivery, delay: float | None, error: BaseException | None = None) -> None:
        """The delivery failed: deliver the record again after `delay` seconds, or copy it to the dead letter topic."""
        self.counts.nacked += 1
        self._end(delivery, DeliveryState.NACKED)
        self.fail(delivery, delay, "nacked" if error is None else f"{type(error).__name__}: {error}")

    def fail(self, delivery: Delivery, delay: float | None, reason: str) -> None:
        """After an unsuccessful end of a delivery: repeat it later, or copy the record to the dead letter topic."""
        work: PartitionWork = delivery._work
        record = delivery.record
        if not work.is_open and self.works.get(work.tp) is not work:
            return
        work.window.set_attempts(record.offset, delivery.attempt)
        work.on_change()
        if self.publisher.is_last(delivery.attempt):
            self.begin_publishing(delivery)
            self.publisher.start_dead_letter(delivery, reason)
            return
        if self._has_lanes and not self._holds_lanes:
            self._free_lane(work, record)
        seconds = self._delay_of(delivery.attempt) if delay is None else delay
        self._wait(work, record, self._clock() + seconds)
        self.relist(work)

    def release(self, delivery: Delivery) -> None:
        """The delivery was neither done nor failed: deliver the record again, with the same number."""
        self._end(delivery, DeliveryState.RELEASED)
        work: PartitionWork = delivery._work
        if not work.is_open:
            return
        (work.retries if delivery.is_retry else work.fresh).appendleft(delivery.record)
        self.relist(work)

    def renew(self, delivery: Delivery) -> None:
        """Begin the ack timeout of a delivery again."""
        if self.ack_timeout is not None:
            delivery.deadline = self._clock() + self.ack_timeout
            in_hand = delivery._work.in_hand  # in the order of deadlines
            in_hand[delivery.record.offset] = in_hand.pop(delivery.record.offset)

    def _end(self, delivery: Delivery, state: DeliveryState) -> None:
        delivery.state = state
        delivery._work.in_hand.pop(delivery.record.offset, None)
        if delivery.is_retry:
            self._retries_in_hand -= 1

    def _done(self, work: PartitionWork, record: Record) -> None:
        work.on_change()
        self.on_ack()
        if self._has_lanes:
            self._free_lane(work, record)
        if self.serial or work.is_full:
            self.relist(work)

    def _free_lane(self, work: PartitionWork, record: Record) -> None:
        key = self._ordering_key(record) if self._has_lanes else None
        if key is not None and (following := work.leave_lane(key)) is not None:
            self._admit(work, following)
            self.on_ready()

    # --- copies to other topics --------------------------------------------------------------------------------------------

    def begin_publishing(self, delivery: Delivery) -> None:
        """The record is being copied to another topic; records of its key wait."""
        if delivery.state is DeliveryState.IN_HAND:
            self._end(delivery, DeliveryState.PUBLISHING)
        delivery.state = DeliveryState.PUBLISHING
        delivery._work.publishing += 1

    def finish(self, delivery: Delivery) -> AckOutcome:
        """The copy was acknowledged by the broker: the record is done."""
        work: PartitionWork = delivery._work
        work.publishing -= 1
        if self.works.get(work.tp) is not work or delivery.record.offset in work.window:
            delivery.state = DeliveryState.LOST
            return AckOutcome.LOST
        delivery.state = DeliveryState.ACKED
        work.window.ack(delivery.record.offset)
        self._done(work, delivery.record)
        return AckOutcome.ACKED

    def give_back(self, delivery: Delivery) -> None:
        """The copy was given up, as the partition was revoked: the record is delivered again by its next owner."""
        delivery._work.publishing -= 1
        delivery.state = DeliveryState.LOST

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _wait(self, work: PartitionWork, record: Record, due: float) -> None:
        if not work.is_open:
            return
        work.waiting[record.offset] = record
        heapq.heappush(self._due, (due, next(self._numbers), work, record))
        if self._due[0][3] is record:
            self.on_due(due)

    def wake(self) -> float:
        """Handle all that is due now; return the loop time at which the next thing is due, infinity for none."""
        now, heap = self._clock(), self._due
        while heap and heap[0][0] <= now:
            _, _, work, record = heapq.heappop(heap)
            if work.waiting.get(record.offset) is record:
                del work.waiting[record.offset]
                self._on_due(work, record)
        due = heap[0][0] if heap else _NEVER
        return due if self.ack_timeout is None else min(due, self._expire(now))

    def _on_due(self, work: PartitionWork, record: Record) -> None:
        if self.mode.in_order and not self.serial and record.offset in work.window.attempts:
            self._rewind(work, record)
        elif self._has_lanes and not self._holds_lanes and record.offset in work.window.attempts:
            self._arrive(work, record)
        else:
            self._make_ready(work, record)
        self.on_ready()

    def _rewind(self, work: PartitionWork, record: Record) -> None:
        """Deliver all unacknowledged records of the partition again, in order (C11: Pulsar without Shared)."""
        again = {record.offset: record} | work.waiting
        work.waiting = {}
        for delivery in list(work.in_hand.values()):
            self._end(delivery, DeliveryState.EXPIRED)
            again[delivery.record.offset] = delivery.record
        again |= {kept.offset: kept for kept in (*work.retries, *work.fresh)}
        work.fresh = deque()
        # one queue, so that the order stays: `retries` holds all up to the last one that was delivered before
        work.retries = deque(again[offset] for offset in sorted(again))
        self.relist(work)

    def _expire(self, now: float) -> float:
        """End the deliveries whose ack timeout has passed; return the next deadline."""
        following = _NEVER
        for work in list(self.works.values()):
            while work.in_hand:
                delivery = next(iter(work.in_hand.values()))
                deadline = delivery.deadline
                if deadline is None or deadline > now:
                    following = following if deadline is None else min(following, deadline)
                    break
                self.counts.expired += 1
                self._end(delivery, DeliveryState.EXPIRED)
                if not self.on_expired(delivery):  # else it is repeated when its handler has ended
                    self.fail(delivery, 0.0, f"not acknowledged within {self.ack_timeout:g} s")
        return following
