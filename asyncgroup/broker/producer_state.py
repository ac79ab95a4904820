"""What a partition remembers of idempotent and transactional producers (KIP-98; Kafka's `ProducerStateEntry`,
`ProducerAppendInfo` and `ProducerStateManager`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.records import BatchHeader

__all__ = ["AbortedTransaction", "ActiveProducer", "LastRecord", "ProducerStates"]

REMEMBERED_BATCHES: Final = 5
"""How many batches back a repetition is recognised: as many as a producer may have in flight."""

_LAST_SEQUENCE: Final = 2**31 - 1


class AbortedTransaction(NamedTuple):
    """An aborted transaction of one partition: its first record's offset, and its marker's (Kafka's `AbortedTxn`)."""

    producer_id: int
    first_offset: int
    last_offset: int


class LastRecord(NamedTuple):
    """A producer's last record: its offset, None if only a marker is known of its epoch (Kafka's `LastRecord`)."""

    offset: int | None
    epoch: int


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it: its last sequence number (-1: none known) and time (ms), the epoch of the
    coordinator that wrote its last marker (-1: none did), and where its open transaction begins (-1: none is open).
    """

    id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    first_offset: int


class _Batch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "doubtful", "epoch", "timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[_Batch] = deque(maxlen=REMEMBERED_BATCHES)
        self.coordinator_epoch = -1
        self.timestamp = -1  # ms, of what it wrote last
        self.doubtful = False


class ProducerStates:
    """The producers that wrote to one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset, ascending

    def __repr__(self) -> str:
        return f"<ProducerStates {len(self._producers)} producers, {len(self._open)} open transactions>"

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins; None if none is open."""
        return next(iter(self._open.values()), None)

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction here, begun in this epoch."""
        return producer_id in self._open and self._producers[producer_id].epoch == producer_epoch

    def is_known(self, producer_id: int) -> bool:
        """Whether some batch or marker of the producer is remembered."""
        return producer_id in self._producers

    def check(self, header: BatchHeader) -> int | None:
        """Look at a batch before it is appended: the base offset it already has if it is a repetition, else
        None.

        Raises AppendError for an old epoch (INVALID_PRODUCER_EPOCH), a gap (OUT_OF_ORDER_SEQUENCE_NUMBER), or a plain
        batch in the middle of a transaction (INVALID_TXN_STATE).
        A producer that the partition does not know may start with any sequence number, as its records may
        have been deleted (KIP-360).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        self._check_epoch(header.producer_id, header.producer_epoch)
        first = header.base_sequence
        if header.producer_epoch > producer.epoch:
            expected = 0
        else:
            last = _last_sequence(header)
            for known in producer.batches:
                if (known.first_sequence, known.last_sequence) == (first, last):
                    return known.base_offset
            if producer.doubtful and not producer.batches:
                expected = first
            else:
                expected = _next_sequence(producer.batches[-1].last_sequence) if producer.batches else 0
        if first != expected:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} where {expected} is next",
            )
        if header.producer_id in self._open and not header.is_transactional:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} wrote outside of its open transaction",
            )
        return None

    def _check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        producer = self._producers.get(producer_id)
        if producer is not None and producer_epoch < producer.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} is older than {producer.epoch}",
            )

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that went into the log at `base_offset`."""
        producer = self._in_epoch(header.producer_id, header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        producer.batches.append(
            _Batch(header.base_sequence, _last_sequence(header), base_offset, last_offset)
        )
        producer.timestamp = header.max_timestamp
        if header.is_transactional:
            self._open.setdefault(header.producer_id, base_offset)

    def check_marker(self, producer_id: int, producer_epoch: int) -> None:
        """Look at a marker before it is appended; raises AppendError(INVALID_PRODUCER_EPOCH) for an old epoch."""
        self._check_epoch(producer_id, producer_epoch)

    def ended(
        self, producer_id: int, producer_epoch: int, offset: int, *, committed: bool, timestamp: int = -1
    ) -> AbortedTransaction | None:
        """The marker at `offset` ends the producer's transaction; what it aborted, if there was anything.

        A marker of a newer epoch (a fenced producer, KIP-890) makes sequence numbers start anew.
        """
        producer = self._in_epoch(producer_id, producer_epoch)
        producer.timestamp, producer.coordinator_epoch = timestamp, 0
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None or committed:
            return None
        return AbortedTransaction(producer_id, first_offset, offset)

    def active(self) -> list[ActiveProducer]:
        """All that are remembered (KIP-664)."""
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
        """The last record of each producer, by producer id."""
        return {
            producer_id: LastRecord(one.batches[-1].last_offset if one.batches else None, one.epoch)
            for producer_id, one in self._producers.items()
        }

    def doubt_sequences(self) -> None:
        """The log was read anew: a producer of which it holds a marker and nothing else may have written before, in
        batches that were deleted since, so that any sequence number may be its next one. (Kafka knows better, from the
        snapshots of `ProducerStateManager`.)
        """
        for one in self._producers.values():
            one.doubtful = not one.batches

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that wrote nothing for so long and have no open transaction
        (`producer.id.expiration.ms`).
        """
        for producer_id, one in list(self._producers.items()):
            if producer_id not in self._open and now_ms - one.timestamp >= expiration_ms:
                del self._producers[producer_id]

    def _in_epoch(self, producer_id: int, producer_epoch: int) -> _Producer:
        producer = self._producers.get(producer_id)
        if producer is None or producer_epoch > producer.epoch:
            producer = self._producers[producer_id] = _Producer(producer_epoch)
        return producer


def _last_sequence(header: BatchHeader) -> int:
    """Sequence numbers go round from 2**31 - 1 to 0."""
    return (header.base_sequence + header.last_offset_delta) & _LAST_SEQUENCE


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == _LAST_SEQUENCE else sequence + 1
