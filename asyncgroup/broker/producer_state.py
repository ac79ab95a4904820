"""What a partition remembers of idempotent producers (KIP-98; Kafka's `ProducerStateEntry` and
`ProducerAppendInfo`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.records import BatchHeader

__all__ = ["ProducerStates"]

REMEMBERED_BATCHES: Final = 5
"""How many batches back a repetition is recognised: as many as a producer may have in flight."""

_LAST_SEQUENCE: Final = 2**31 - 1


class _Batch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int


class _Producer:
    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[_Batch] = deque(maxlen=REMEMBERED_BATCHES)


class ProducerStates:
    """The producers that wrote to one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __repr__(self) -> str:
        return f"<ProducerStates {len(self._producers)} producers>"

    def check(self, header: BatchHeader) -> int | None:
        """Look at a batch before it is appended: the base offset it already has if it is a repetition, else
        None.

        Raises AppendError for an old epoch (INVALID_PRODUCER_EPOCH) or a gap (OUT_OF_ORDER_SEQUENCE_NUMBER).
        A producer that the partition does not know may start with any sequence number, as its records may
        have been deleted (KIP-360).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {header.producer_epoch} of producer {header.producer_id} is older than {producer.epoch}",
            )
        first = header.base_sequence
        if header.producer_epoch > producer.epoch:
            expected = 0
        else:
            last = _last_sequence(header)
            for known in producer.batches:
                if (known.first_sequence, known.last_sequence) == (first, last):
                    return known.base_offset
            expected = _next_sequence(producer.batches[-1].last_sequence)
        if first != expected:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} where {expected} is next",
            )
        return None

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that went into the log at `base_offset`."""
        producer = self._producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        producer.batches.append(_Batch(header.base_sequence, _last_sequence(header), base_offset))


def _last_sequence(header: BatchHeader) -> int:
    """Sequence numbers go round from 2**31 - 1 to 0."""
    return (header.base_sequence + header.last_offset_delta) & _LAST_SEQUENCE


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == _LAST_SEQUENCE else sequence + 1
