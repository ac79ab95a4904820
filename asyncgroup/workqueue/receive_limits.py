"""ReceiveLimits: how many records and bytes a queue holds for each of its partitions."""

from __future__ import annotations

from typing import Final

from asyncgroup.workqueue.partition_work import RECORD_OVERHEAD
from asyncgroup.workqueue.settings import QueueSettings

__all__ = ["ReceiveLimits"]

BATCHES: Final = 4
"""Batches that fill the bytes of a partition: above its limit it has one of them at most."""


class ReceiveLimits:
    """Shares of the queue's limits, by the number of partitions (Pulsar's `MultiTopicsConsumerImpl`).

    A partition has at most min(`receiver_queue`, `receiver_queue_total` / partitions) records that are not acquired, and is
    refilled when there is room for `batch_records`: when half of them were, or before if its bytes allow fewer. Its bytes
    also count the records that are acquired or wait for their time.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self.partitions = 1
        """The number of partitions that the queue has now."""

    def __repr__(self) -> str:
        return f"<ReceiveLimits: {self.records} records, {self.bytes} bytes for each of {self.partitions} partitions>"

    @property
    def on_demand(self) -> bool:
        """Whether records are requested one by one, when a task waits for them (`receiver_queue=0`)."""
        return self._settings.receiver_queue == 0

    @property
    def records(self) -> int:
        """The most records that a partition holds."""
        settings = self._settings
        return max(1, min(settings.receiver_queue, settings.receiver_queue_total // max(1, self.partitions)))

    @property
    def batch_records(self) -> int:
        """The most records that are added at a time: half of `records`, and no more than fit with empty values."""
        return max(1, min(self.records // 2, self.batch_bytes // RECORD_OVERHEAD))

    @property
    def bytes(self) -> int:
        """Bytes of keys and values from which on a partition gets no more records."""
        return max(1, self._settings.receive_buffer_bytes // max(1, self.partitions))

    @property
    def batch_bytes(self) -> int:
        """The most wire bytes that are added at a time, but always one record."""
        return max(1, self.bytes // BATCHES)
