"""State of one producer in a partition (Kafka's `ProducerStateEntry`)."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from asyncgroup.wire.batch_view import BatchView

__all__ = ["NUM_BATCHES_TO_RETAIN", "BatchMetadata", "ProducerStateEntry"]

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
        if batch.producer_epoch != self.epoch:
            return None
        wanted = (batch.base_sequence, _last_sequence(batch))
        return next((one for one in self.batches if (one.first_sequence, one.last_sequence) == wanted), None)

    def expected(self, batch: BatchView) -> int:
        """Return the sequence number that the producer's next batch must have; a new epoch begins with 0."""
        if batch.producer_epoch > self.epoch:
            return 0
        if self.batches:
            return _next_sequence(self.batches[-1].last_sequence)
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
