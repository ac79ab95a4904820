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
        self.on_demand = settings.receiver_queue == 0
        """Whether records are requested one by one, when a task waits for them (`receiver_queue=0`)."""
        self.partitions = 0
        """The number of partitions that the queue has now."""
        self.records = 1
        """The most records that a partition holds."""
        self.batch_records = 1
        """The most records that are added at a time: half of `records`, and no more than fit with empty values."""
        self.bytes = 1
        """Bytes of keys and values from which on a partition gets no more records."""
        self.batch_bytes = 1
        """The most wire bytes that are added at a time, but always one record."""
        self.share_by(1)

    def __repr__(self) -> str:
        return f"<ReceiveLimits: {self.records} records, {self.bytes} bytes for each of {self.partitions} partitions>"

    def share_by(self, partitions: int) -> None:
        """The queue has this number of partitions now; they are read for each batch, so all limits are computed here."""
        settings, self.partitions = self._settings, partitions
        parts = max(1, partitions)
        self.records = max(1, min(settings.receiver_queue, settings.receiver_queue_total // parts))
        self.bytes = max(1, settings.receive_buffer_bytes // parts)
        self.batch_bytes = max(1, self.bytes // BATCHES)
        self.batch_records = max(1, min(self.records // 2, self.batch_bytes // RECORD_OVERHEAD))
