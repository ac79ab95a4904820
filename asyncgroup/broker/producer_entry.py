"""What a partition remembers of one producer (Kafka's `ProducerStateEntry`)."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from asyncgroup.wire.records import BatchHeader

__all__ = ["REMEMBERED_BATCHES", "KnownBatch", "ProducerEntry"]

REMEMBERED_BATCHES: Final = 5
"""How many batches back a repetition is recognised: as many as a producer may have in flight."""

_LAST_SEQUENCE: Final = 2**31 - 1


class KnownBatch(NamedTuple):
    """One of a producer's last batches; `timestamp` is its highest, in ms (Kafka's `BatchMetadata`)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """A producer in its latest epoch; `timestamp` is that of what it wrote last, in ms, -1 for nothing yet.

    `coordinator_epoch` is that of its last marker, -1 for none. `doubtful`: see `ProducerStates.doubt_sequences`.
    """

    __slots__ = ("batches", "coordinator_epoch", "doubtful", "epoch", "timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[KnownBatch] = deque(maxlen=REMEMBERED_BATCHES)
        self.coordinator_epoch = -1
        self.timestamp = -1
        self.doubtful = False

    def find(self, header: BatchHeader) -> KnownBatch | None:
        """The batch that this one repeats, if it is one of the last few."""
        if header.producer_epoch != self.epoch:
            return None
        wanted = (header.base_sequence, _last_sequence(header))
        return next((one for one in self.batches if (one.first_sequence, one.last_sequence) == wanted), None)

    def expected(self, header: BatchHeader) -> int:
        """The sequence number of its next batch: a new epoch begins with 0."""
        if header.producer_epoch > self.epoch:
            return 0
        if self.batches:
            return _next_sequence(self.batches[-1].last_sequence)
        return header.base_sequence if self.doubtful else 0

    def add(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that went into the log at `base_offset`."""
        last_offset = base_offset + header.last_offset_delta
        self.batches.append(
            KnownBatch(
                header.base_sequence, _last_sequence(header), base_offset, last_offset, header.max_timestamp
            )
        )
        self.timestamp = header.max_timestamp


def _last_sequence(header: BatchHeader) -> int:
    """Sequence numbers go round from 2**31 - 1 to 0."""
    return (header.base_sequence + header.last_offset_delta) & _LAST_SEQUENCE


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == _LAST_SEQUENCE else sequence + 1
