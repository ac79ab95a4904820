"""What a partition remembers of idempotent and transactional producers (KIP-98; Kafka's `ProducerAppendInfo` and
`ProducerStateManager`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.producer_entry import KnownBatch, ProducerEntry
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.records import BatchHeader

__all__ = ["AbortedTransaction", "ActiveProducer", "LastRecord", "ProducerStates"]

_LAST_EPOCH: Final = 2**15 - 1
"""The highest epoch that there can be: no marker can have a higher one."""

_FEW: Final = 64


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


class _Unverified(NamedTuple):
    """A producer whose transaction is not open here yet and that wants to write (Kafka's `VerificationStateEntry`)."""

    epoch: int
    lowest_sequence: int
    adds: bool


class ProducerStates:
    """The producers that wrote to one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset
        self._begun: deque[tuple[int, int]] = deque()
        """(first offset, producer id) of open transactions, ascending. One that has ended leaves when it comes to the
        front: what is asked for with every read is where the first one begins.
        """
        self._unverified: dict[int, _Unverified] = {}
        self._is_read_anew = False

    def __repr__(self) -> str:
        return f"<ProducerStates {len(self._producers)} producers, {len(self._open)} open transactions>"

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins; None if none is open."""
        begun = self._begun
        while begun and self._open.get(begun[0][1]) != begun[0][0]:
            begun.popleft()
        return begun[0][0] if begun else None

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction here, begun in this epoch."""
        return producer_id in self._open and self._producers[producer_id].epoch == producer_epoch

    def verify(self, header: BatchHeader, *, adds: bool) -> None:
        """A transactional batch came whose transaction is not open here: its coordinator is asked now (KIP-890).

        Whatever it says, no batch with a higher sequence number may be first in the transaction from now on: else one
        that has to be sent again could never follow. `adds`: the producer adds partitions by writing to them, and counts
        each one's records from 0, as each of its transactions has its own epoch.

        Raises AppendError(INVALID_PRODUCER_EPOCH) for an old epoch.
        """
        self._check_epoch(header.producer_id, header.producer_epoch)
        epoch, sequence = header.producer_epoch, header.base_sequence
        known = self._unverified.setdefault(header.producer_id, _Unverified(epoch, sequence, adds))
        if epoch > known.epoch or (epoch == known.epoch and sequence < known.lowest_sequence):
            self._unverified[header.producer_id] = _Unverified(epoch, sequence, known.adds)

    def check(self, header: BatchHeader) -> KnownBatch | None:
        """Look at a batch before it is appended: the one that is there already if it is a repetition, else None.

        Raises AppendError for an old epoch (INVALID_PRODUCER_EPOCH), a gap (OUT_OF_ORDER_SEQUENCE_NUMBER), or a plain
        batch in the middle of a transaction (INVALID_TXN_STATE).
        A producer that the partition does not know may start with any sequence number, as its records may
        have been deleted (KIP-360).
        """
        self._check_epoch(header.producer_id, header.producer_epoch)
        producer = self._producers.get(header.producer_id)
        if producer is not None and (known := producer.find(header)) is not None:
            return known
        expected = self._expected(header, producer)
        if header.base_sequence != expected:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} is next",
            )
        if header.producer_id in self._open and not header.is_transactional:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} wrote outside of its open transaction",
            )
        return None

    def _expected(self, header: BatchHeader, producer: ProducerEntry | None) -> int:
        """The sequence number that a batch which is no repetition must have."""
        unverified = self._unverified.get(header.producer_id)
        if unverified is not None:
            if unverified.adds and (producer is None or not producer.batches):
                return 0
            if header.base_sequence > unverified.lowest_sequence:
                return unverified.lowest_sequence
        if producer is None:
            return header.base_sequence
        return producer.expected(header)

    def _check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        producer = self._producers.get(producer_id)
        if producer is not None and producer_epoch < producer.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} is older than {producer.epoch}",
            )

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that went into the log at `base_offset`."""
        self._in_epoch(header.producer_id, header.producer_epoch).add(header, base_offset)
        if header.is_transactional:
            if header.producer_id not in self._open:
                self._begin(header.producer_id, base_offset)
            self._unverified.pop(header.producer_id, None)

    def _begin(self, producer_id: int, first_offset: int) -> None:
        self._open[producer_id] = first_offset
        self._begun.append((first_offset, producer_id))
        if len(self._begun) > 2 * len(self._open) + _FEW:  # many have ended while the first one stays open
            self._begun = deque(one for one in self._begun if self._open.get(one[1]) == one[0])

    def check_marker(self, producer_id: int, producer_epoch: int, *, bumps: bool = False) -> None:
        """Look at a marker before it is appended; raises AppendError(INVALID_PRODUCER_EPOCH) for an old epoch.

        `bumps`: with the end of a transaction the epoch goes up, so that a marker of the epoch in which an open one was
        begun belongs to the one before (KIP-890, `ProducerAppendInfo.checkProducerEpoch`).
        """
        self._check_epoch(producer_id, producer_epoch)
        if bumps and producer_epoch < _LAST_EPOCH and self.is_open(producer_id, producer_epoch):
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {producer_epoch} ends no transaction of producer {producer_id} in this epoch",
            )

    def ended(
        self, producer_id: int, producer_epoch: int, offset: int, *, committed: bool, timestamp: int = -1
    ) -> AbortedTransaction | None:
        """The marker at `offset` ends the producer's transaction; what it aborted, if there was anything.

        A marker of a newer epoch (a fenced producer, KIP-890) makes sequence numbers start anew.
        """
        producer = self._in_epoch(producer_id, producer_epoch)
        producer.timestamp, producer.coordinator_epoch = timestamp, 0
        first_offset = self._open.pop(producer_id, None)
        unverified = self._unverified.get(producer_id)
        if unverified is not None and not (unverified.adds and unverified.epoch == producer_epoch):
            del self._unverified[producer_id]
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
        """The log was read anew: a producer of which it holds nothing, or a marker and nothing else, may have written
        before, in batches that were deleted since, so that any sequence number may be its next one, also behind further
        markers. (Kafka knows better, from the snapshots of `ProducerStateManager`.)
        """
        self._is_read_anew = True
        for one in self._producers.values():
            one.doubtful = not one.batches

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that wrote nothing for so long and have no open transaction
        (`producer.id.expiration.ms`).
        """
        self._unverified.clear()
        for producer_id, one in list(self._producers.items()):
            if producer_id not in self._open and now_ms - one.timestamp >= expiration_ms:
                del self._producers[producer_id]

    def _in_epoch(self, producer_id: int, producer_epoch: int) -> ProducerEntry:
        producer = self._producers.get(producer_id)
        if producer is None or producer_epoch > producer.epoch:
            before, producer = producer, ProducerEntry(producer_epoch)
            self._producers[producer_id] = producer
            producer.doubtful = before is None and self._is_read_anew
            if before is not None:
                producer.coordinator_epoch = before.coordinator_epoch
        return producer
