"""State of the idempotent and transactional producers of a partition (KIP-98).

Kafka's `ProducerStateManager` and `ProducerAppendInfo`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.batch_view import BatchView

__all__ = [
    "NUM_BATCHES_TO_RETAIN",
    "AbortedTransaction",
    "ActiveProducer",
    "BatchMetadata",
    "LastRecord",
    "ProducerStateEntry",
    "ProducerStateManager",
]

NUM_BATCHES_TO_RETAIN: Final = 5
"""Number of batches kept to detect duplicates: as many as a producer may have in flight."""

_LAST_SEQUENCE: Final = 2**31 - 1


class BatchMetadata(NamedTuple):
    """One of a producer's last batches (Kafka's `BatchMetadata`); `timestamp` is its largest, in ms."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerStateEntry:
    """A producer in its latest epoch.

    `timestamp` is that of its last batch or marker in ms (-1: none yet), `coordinator_epoch` that of its last
    marker (-1: none). `sequence_unknown`: see `ProducerStateManager.accept_any_sequence`.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "sequence_unknown", "timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=NUM_BATCHES_TO_RETAIN)
        self.coordinator_epoch = -1
        self.timestamp = -1
        self.sequence_unknown = False

    def find(self, batch: BatchView) -> BatchMetadata | None:
        """Return the earlier batch of which this one is a duplicate, if it is among the last batches."""
        # sequence numbers begin with 0 in each epoch, so equal ones of another epoch are other records
        if batch.producer_epoch != self.epoch:
            return None
        # first and last sequence are compared: a batch that was split and sent again is not a duplicate
        wanted = (batch.base_sequence, _last_sequence(batch))
        return next((one for one in self.batches if (one.first_sequence, one.last_sequence) == wanted), None)

    def expected(self, batch: BatchView) -> int:
        """Return the sequence number that the producer's next batch must have; a new epoch begins with 0."""
        if batch.producer_epoch > self.epoch:
            return 0
        if self.batches:
            return _next_sequence(self.batches[-1].last_sequence)
        # the epoch is known by a marker only: its first batch begins with 0, unless batches were lost in a restore
        return batch.base_sequence if self.sequence_unknown else 0

    def add(self, batch: BatchView, base_offset: int) -> None:
        """Add a batch that was appended at `base_offset`."""
        last_offset = base_offset + batch.last_offset_delta
        self.batches.append(
            BatchMetadata(
                batch.base_sequence, _last_sequence(batch), base_offset, last_offset, batch.max_timestamp
            )
        )
        self.timestamp = batch.max_timestamp


def _last_sequence(batch: BatchView) -> int:
    """Return the batch's last sequence number; they wrap from 2**31 - 1 to 0."""
    return (batch.base_sequence + batch.last_offset_delta) & _LAST_SEQUENCE


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == _LAST_SEQUENCE else sequence + 1


_LAST_EPOCH: Final = 2**15 - 1
"""The largest producer epoch."""

_FEW: Final = 64
"""Number of ended transactions that may stay in the queue of open ones before it is cleaned up."""


class AbortedTransaction(NamedTuple):
    """An aborted transaction: the offsets of its first record and of its marker (Kafka's `AbortedTxn`)."""

    producer_id: int
    first_offset: int
    last_offset: int


class LastRecord(NamedTuple):
    """The offset of a producer's last record, None if its epoch has only a marker (Kafka's `LastRecord`)."""

    offset: int | None
    epoch: int


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers returns it (KIP-664)."""

    id: int
    epoch: int
    last_sequence: int
    """-1 if unknown."""
    last_timestamp: int
    """In ms, -1 for none."""
    coordinator_epoch: int
    """Epoch of the coordinator that wrote its last marker, -1 for none."""
    first_offset: int
    """First offset of its open transaction, -1 if none is open."""


class _VerificationState(NamedTuple):
    """A producer whose first batch of a transaction is being verified (Kafka's `VerificationStateEntry`)."""

    epoch: int
    lowest_sequence: int
    adds_partitions: bool


class ProducerStateManager:
    """The producers that wrote to one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._open: dict[int, int] = {}  # first offset of each open transaction, by producer id
        self._begun: deque[tuple[int, int]] = deque()
        """(first offset, producer id) of open transactions, ascending. Ended ones are removed only when they reach the
        front, because every read needs only the first offset of the first open one.
        """
        self._unverified: dict[int, _VerificationState] = {}
        self._restored = False

    def __repr__(self) -> str:
        return f"<ProducerStateManager {len(self._producers)} producers, {len(self._open)} open transactions>"

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest open transaction, None if none is open."""
        begun = self._begun
        # the first offset too: the producer may have begun another transaction since
        while begun and self._open.get(begun[0][1]) != begun[0][0]:
            begun.popleft()
        return begun[0][0] if begun else None

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has an open transaction in this partition, begun in this epoch."""
        return producer_id in self._open and self._producers[producer_id].epoch == producer_epoch

    def record_verification(self, batch: BatchView, *, adds_partitions: bool) -> None:
        """Record a transactional batch whose transaction is not open here, before its coordinator is asked (KIP-890).

        After any answer of the coordinator, no batch with a higher sequence number may open the transaction from now
        on: otherwise a retry of this batch would be out of order. `adds_partitions`: the producer adds partitions
        by writing to them; each of its transactions has its own epoch, so sequence numbers begin with 0.

        Raise AppendError(INVALID_PRODUCER_EPOCH) for an old epoch.
        """
        self._check_epoch(batch.producer_id, batch.producer_epoch)
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        # a later batch changes epoch and number only: how its producer adds partitions is known from the first
        known = self._unverified.setdefault(
            batch.producer_id, _VerificationState(epoch, sequence, adds_partitions)
        )
        # a retry with a lower number was sent before: that one has to come first
        if epoch > known.epoch or (epoch == known.epoch and sequence < known.lowest_sequence):
            self._unverified[batch.producer_id] = _VerificationState(epoch, sequence, known.adds_partitions)

    def check_append(self, batch: BatchView) -> BatchMetadata | None:
        """Check a batch before its append; return the batch in the log of which it is a duplicate, else None.

        Raise AppendError for an old epoch (INVALID_PRODUCER_EPOCH), a gap (OUT_OF_ORDER_SEQUENCE_NUMBER), or a
        non-transactional batch within a transaction (INVALID_TXN_STATE). An unknown producer may start with any
        sequence number, as its records may have been deleted (KIP-360).
        """
        # before the duplicates: a fenced producer gets the error also for a batch that it wrote
        self._check_epoch(batch.producer_id, batch.producer_epoch)
        producer = self._producers.get(batch.producer_id)
        if producer is not None and (known := producer.find(batch)) is not None:
            return known
        expected = self._expected(batch, producer)
        if batch.base_sequence != expected:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} sent sequence number {batch.base_sequence}; expected {expected}",
            )
        if batch.producer_id in self._open and not batch.is_transactional:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} sent a non-transactional batch within its open transaction",
            )
        return None

    def _expected(self, batch: BatchView, producer: ProducerStateEntry | None) -> int:
        """Return the sequence number that a batch must have if it is not a duplicate."""
        unverified = self._unverified.get(batch.producer_id)
        if unverified is not None:
            # its transaction has a new epoch, so that a first batch with another number has lost those before it
            if unverified.adds_partitions and (producer is None or not producer.batches):
                return 0
            # an earlier batch was refused or is still being verified: this one must not open the transaction
            if batch.base_sequence > unverified.lowest_sequence:
                return unverified.lowest_sequence
        if producer is None:
            return batch.base_sequence
        return producer.expected(batch)

    def _check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        producer = self._producers.get(producer_id)
        if producer is not None and producer_epoch < producer.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} is older than its current epoch {producer.epoch}",
            )

    def update(self, batch: BatchView, base_offset: int) -> None:
        """Add a batch that was appended at `base_offset`."""
        self._in_epoch(batch.producer_id, batch.producer_epoch).add(batch, base_offset)
        if batch.is_transactional:
            if batch.producer_id not in self._open:
                self._begin(batch.producer_id, base_offset)
            # the transaction is open: from here on the sequence numbers say what comes next
            self._unverified.pop(batch.producer_id, None)

    def _begin(self, producer_id: int, first_offset: int) -> None:
        self._open[producer_id] = first_offset
        self._begun.append((first_offset, producer_id))
        if len(self._begun) > 2 * len(self._open) + _FEW:  # many have ended while the first one is still open
            self._begun = deque(one for one in self._begun if self._open.get(one[1]) == one[0])

    def check_marker(self, producer_id: int, producer_epoch: int, *, bumps_epoch: bool = False) -> None:
        """Check a marker before its append; raise AppendError(INVALID_PRODUCER_EPOCH) for an old epoch.

        `bumps_epoch`: the end of a transaction increments the epoch, so a marker with the epoch in which the open
        transaction began belongs to the transaction before and is refused (KIP-890,
        `ProducerAppendInfo.checkProducerEpoch`).
        """
        self._check_epoch(producer_id, producer_epoch)
        if bumps_epoch and producer_epoch < _LAST_EPOCH and self.is_open(producer_id, producer_epoch):
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {producer_epoch} cannot end producer {producer_id}'s transaction begun in it",
            )

    def end_transaction(
        self, producer_id: int, producer_epoch: int, offset: int, *, committed: bool, timestamp: int = -1
    ) -> AbortedTransaction | None:
        """End the producer's transaction with the marker at `offset`.

        Return the transaction if it was aborted and has records in this partition, else None.
        After a marker of a newer epoch (a fenced producer, or KIP-890) sequence numbers start at 0 again.
        """
        producer = self._in_epoch(producer_id, producer_epoch)
        # the embedded coordinator has one epoch
        producer.timestamp, producer.coordinator_epoch = timestamp, 0
        first_offset = self._open.pop(producer_id, None)
        unverified = self._unverified.get(producer_id)
        # kept if it is of the next transaction, which begins in the epoch of the marker
        if unverified is not None and not (unverified.adds_partitions and unverified.epoch == producer_epoch):
            del self._unverified[producer_id]
        if first_offset is None or committed:
            return None
        return AbortedTransaction(producer_id, first_offset, offset)

    def active_producers(self) -> list[ActiveProducer]:
        """Return all known producers, for DescribeProducers (KIP-664)."""
        return [
            ActiveProducer(
                producer_id,
                one.epoch,
                one.batches[-1].last_sequence if one.batches else -1,
                one.timestamp,
                one.coordinator_epoch,
                self._open.get(producer_id, -1),
            )
            for producer_id, one in self._producers.items()
        ]

    def last_records(self) -> dict[int, LastRecord]:
        """Return the last record of each producer, by producer id."""
        return {
            producer_id: LastRecord(one.batches[-1].last_offset if one.batches else None, one.epoch)
            for producer_id, one in self._producers.items()
        }

    def accept_any_sequence(self) -> None:
        """After a restore, accept any next sequence number from producers without batches in the log.

        A producer that is unknown, or of which only a marker is left, may have written batches that were deleted
        since; this also holds after further markers. (Kafka keeps the sequence numbers in the snapshots of
        `ProducerStateManager`.)
        """
        self._restored = True
        for one in self._producers.values():
            one.sequence_unknown = not one.batches

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers without open transactions that wrote nothing for `expiration_ms`.

        Kafka's `producer.id.expiration.ms`.
        """
        self._unverified.clear()
        for producer_id, one in list(self._producers.items()):
            if producer_id not in self._open and now_ms - one.timestamp >= expiration_ms:
                del self._producers[producer_id]

    def _in_epoch(self, producer_id: int, producer_epoch: int) -> ProducerStateEntry:
        producer = self._producers.get(producer_id)
        if producer is None or producer_epoch > producer.epoch:
            # a new epoch begins without batches: duplicates are looked for within an epoch
            before, producer = producer, ProducerStateEntry(producer_epoch)
            self._producers[producer_id] = producer
            producer.sequence_unknown = before is None and self._restored
            if before is not None:
                producer.coordinator_epoch = before.coordinator_epoch
        return producer
