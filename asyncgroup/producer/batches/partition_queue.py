"""The batches of one partition: which one is sent next, and with which sequence numbers. State without I/O or tasks.

An idempotent producer numbers the records of each partition, so that a broker refuses a batch that it has already, and one
that does not follow the last (KIP-98). Kafka knows the last five batches of a producer in a partition.

- Batches are sent in order, several at once. After a failure nothing is sent until every batch in flight has its result;
  then those without success are sent again, in order, with the same sequence numbers.
- A batch that leaves without success, as it was rejected or its time has passed, may still be in the log: a *gap*. Its
  sequence numbers are not used again. If a batch after it is accepted, then so was the gap; if the broker refuses it with
  OUT_OF_ORDER_SEQUENCE_NUMBER, neither is in the log. If no batch is after it, it stays unknown.
- If it is not in the log, or unknown, the sequence begins again at 0 under the next epoch (KIP-360), as soon as nothing is in
  flight: a record cannot be written twice then. Epochs are counted by partition, since brokers compare them within one only.
- In transactions the coordinator counts the epochs, one for all partitions: a gap stays until `set_producer_id`.
- A broker that knows nothing of a producer accepts any first sequence number. So one batch is sent until a first one is
  acknowledged: if it was lost and the next one was not, they would be written in the wrong order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.batch import ProducerBatch

__all__ = ["MAX_EPOCH", "NO_ID", "WINDOW", "PartitionQueue"]

WINDOW: Final = 5
"""Batches of a producer in a partition that a broker can recognize (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)."""

FORGOTTEN_AFTER: Final = 600.0
"""Seconds without a success after which the broker may have forgotten the producer (`producer.id.expiration.ms`: a day)."""

NO_ID: Final = -1
"""The producer id of a queue that needs one."""

MAX_EPOCH: Final = (1 << 15) - 1
MAX_SEQUENCE: Final = (1 << 31) - 1

LONG_AGO: Final = float("-inf")
"""A loop time before all others."""


@dataclass(slots=True, eq=False, repr=False)
class PartitionQueue:
    """The batches of one partition that are not done, oldest first. With `is_idempotent` they get sequence numbers."""

    tp: TopicPartition
    is_idempotent: bool = field(default=False, kw_only=True)
    is_transactional: bool = field(default=False, kw_only=True)
    fresh: deque[ProducerBatch] = field(default_factory=deque)
    """Batches that were never sent."""
    open: ProducerBatch | None = None
    """The last one of `fresh` while it accepts records."""
    sent: deque[ProducerBatch] = field(default_factory=deque)
    """Batches that were sent and are not done, by their sequence numbers.

    Unless the queue rewinds, the first ones are in flight.
    """
    node: int = -1
    """The node that the batches in flight were sent to."""
    retry_at: float = LONG_AGO
    """Loop time before which nothing is sent."""
    producer_id: int = NO_ID
    needs_id: bool = field(init=False)
    """Whether it cannot send anything before `set_producer_id`."""
    epoch: int = 0
    _next_sequence: int = 0
    _next_ordinal: int = 0  # unlike sequence numbers, ordinals never begin again
    _in_flight: int = 0
    _is_rewinding: bool = False
    _restarts: bool = False  # begin again at sequence number 0 as soon as nothing is in flight
    _forgets_success: bool = False  # the next leader knows nothing of the producer
    _gap: int | None = None  # the ordinal of the last batch that left without success
    _last_success: float = LONG_AGO  # loop time

    def __post_init__(self) -> None:
        self.needs_id = self.is_idempotent

    def __repr__(self) -> str:
        state = f"{self._in_flight} in flight" if self._in_flight else "idle"
        return f"<PartitionQueue {self.tp} {len(self.fresh) + len(self.sent)} batches, {state}>"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued and nothing is in flight."""
        return not self.fresh and not self.sent and not self._in_flight

    @property
    def in_flight(self) -> int:
        """The number of batches in flight."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """The number of batches that are not in flight."""
        return len(self.fresh) + len(self.sent) - self._in_flight

    @property
    def has_waiting(self) -> bool:
        """Whether a batch is not in flight."""
        return bool(self.fresh) or self._in_flight < len(self.sent)

    @property
    def has_gap(self) -> bool:
        """Whether a batch left without success, and no later one was accepted: it may be in the log."""
        return self._gap is not None

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether no earlier batch that was sent is without a result."""
        return batch is self.sent[0]

    # --- records ------------------------------------------------------------------------------------------------

    def add(self, batch: ProducerBatch) -> None:
        """Add an open batch."""
        self.close_open()
        self.fresh.append(batch)
        self.open = None if batch.closed else batch

    def close_open(self) -> None:
        """Close the open batch: it accepts no more records."""
        if self.open is not None:
            self.open.closed = True
            self.open = None

    def set_producer_id(self, producer_id: int, epoch: int = 0) -> None:
        """Number the batches from 0 on under a producer id and epoch that no broker knows yet."""
        self.producer_id, self.epoch, self._last_success = producer_id, epoch, LONG_AGO
        self.needs_id = False
        self._renumber()

    def restart(self) -> None:
        """Begin the sequence again as soon as nothing is in flight: the partition is another one, of a recreated topic."""
        self._restarts = self._forgets_success = True
        self._is_rewinding = self._in_flight > 0
        self._settle()

    # --- sending ------------------------------------------------------------------------------------------------

    def next_batch(self, now: float) -> ProducerBatch | None:
        """Return the batch to send next; None if there is none, or if results must be known first."""
        if self._is_rewinding or self.needs_id:
            return None
        if self._in_flight < len(self.sent):
            batch, ordinal = self.sent[self._in_flight], self.sent[self._in_flight].ordinal
        elif self.fresh:
            batch, ordinal = self.fresh[0], self._next_ordinal
        else:
            return None
        oldest = self.sent[0].ordinal if self.sent else ordinal
        return batch if ordinal - oldest < self._window(now) else None

    def _window(self, now: float) -> int:
        """Return how many batches from the oldest one on may be in flight."""
        is_known = self.is_idempotent and now - self._last_success < FORGOTTEN_AFTER
        return WINDOW if is_known else 1

    def begin(self, batch: ProducerBatch, node: int) -> None:
        """Count the batch of `next_batch` as in flight to a node; a fresh one gets its sequence numbers."""
        if self._in_flight == len(self.sent):
            self.fresh.popleft()
            if batch is self.open:
                self.close_open()
            self.sent.append(batch)
            self._number(batch)
        self._in_flight += 1
        self.node = node
        batch.attempts += 1
        batch.in_flight = True

    def _number(self, batch: ProducerBatch) -> None:
        batch.ordinal = self._next_ordinal
        self._next_ordinal += 1
        if self.is_idempotent:
            batch.number(self.producer_id, self.epoch, self._next_sequence)
            self._next_sequence = (self._next_sequence + batch.count) & MAX_SEQUENCE

    # --- results of batches in flight ---------------------------------------------------------------------------

    def succeed(self, batch: ProducerBatch, now: float) -> None:
        """The batch is in the log, and so is every earlier one under the same epoch."""
        self.retry_at = LONG_AGO
        self._last_success = now
        if self._gap is not None and self._gap < batch.ordinal:
            self._gap = None
        self.sent.remove(batch)
        self._end(batch)

    def fail(self, batch: ProducerBatch, at: float, *, is_out_of_order: bool = False) -> None:
        """Send the batch again, not before loop time `at`.

        `is_out_of_order`: the broker says that its sequence number does not follow the last one it knows. For the first of
        the batches it means that neither this one nor any gap before it is in the log.
        """
        self.retry_at = max(self.retry_at, at)
        self._restarts |= is_out_of_order and batch is self.sent[0]
        self._is_rewinding = True
        self._end(batch)

    def drop(self, batch: ProducerBatch) -> None:
        """The batch leaves without success: it was rejected, or its time has passed."""
        self._is_rewinding = True
        self._leave(batch)
        self._end(batch)

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Send the batch in flight, which is not in the log, in parts; these take over its sequence numbers."""
        place, more = self.sent.index(batch), len(parts) - 1
        for later in itertools.islice(self.sent, place + 1, None):
            later.ordinal += more
        if self._gap is not None and self._gap > batch.ordinal:
            self._gap += more
        self._next_ordinal += more
        sequence = batch.sequence
        del self.sent[place]
        for ordinal, part in enumerate(parts):
            part.ordinal = batch.ordinal + ordinal
            if self.is_idempotent:
                part.number(batch.producer_id, batch.epoch, sequence)
                sequence = (sequence + part.count) & MAX_SEQUENCE
            self.sent.insert(place + ordinal, part)
        self._is_rewinding = True
        self._end(batch)

    def _end(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        self._in_flight -= 1
        self._settle()

    def _leave(self, batch: ProducerBatch) -> None:
        self.sent.remove(batch)
        if self.is_idempotent:
            self._gap = batch.ordinal if self._gap is None else max(self._gap, batch.ordinal)

    def _settle(self) -> None:
        """Go back to the first batch if all in flight have their results."""
        if self._in_flight:
            return
        self._is_rewinding = False
        if self._forgets_success:
            self._forgets_success, self._last_success = False, LONG_AGO
        if self.is_transactional:
            return  # the coordinator counts the epochs: the transaction is aborted, then the next epoch begins
        if self._restarts or (self._gap is not None and not self.sent):
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        if self.epoch == MAX_EPOCH:
            self.producer_id, self.needs_id = NO_ID, True
        else:
            self.epoch += 1
            self._renumber()

    def _renumber(self) -> None:
        self._restarts, self._gap, self._next_sequence = False, None, 0
        for batch in self.sent:
            self._number(batch)

    # --- expiry -------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> list[ProducerBatch]:
        """Return the batches in flight that are not done and whose time has passed; they still get their results."""
        return [batch for batch in self.sent if batch.in_flight and not batch.done and batch.deadline <= now]

    def next_deadline(self, now: float) -> float:
        """Return the first loop time after `now` at which a batch expires; infinity without any."""
        deadlines = [batch.deadline for batch in self.sent if not batch.done and batch.deadline > now]
        if self.fresh:
            deadlines.append(self.fresh[0].deadline)
        return min(deadlines, default=float("inf"))

    def expire(self, now: float) -> list[ProducerBatch]:
        """Remove the waiting batches that are done or whose time has passed; return the latter."""
        over = [batch for batch in self.sent if not batch.in_flight and (batch.done or batch.deadline <= now)]
        for batch in over:
            self._leave(batch)
        while self.fresh and (self.fresh[0].done or self.fresh[0].deadline <= now):
            if self.fresh[0] is self.open:
                self.close_open()
            over.append(self.fresh.popleft())
        if over:
            self._settle()
        return [batch for batch in over if not batch.done]
