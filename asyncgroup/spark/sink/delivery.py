"""Delivery guarantees of the sink: when the records of a Spark task become visible. Only at-least-once exists so far.

A task calls `begin` before its first record and `finish` after its last one; both run on an executor. The receipt that
`finish` returns is sent to the driver in the task's commit message; the driver calls `commit` with the receipts of all
tasks, or `abort` with the existing ones. A transactional guarantee would keep transactions open at `finish`, return their
ids as receipts, and end them at `commit`, for the batch with the number `batch_id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from asyncgroup.producer import Producer

__all__ = ["AtLeastOnce", "DeliveryGuarantee", "TaskReceipt"]

TaskReceipt = Mapping[str, str]
"""What the driver needs in order to commit or abort a task's records."""


class DeliveryGuarantee(Protocol):
    """How records become visible to readers. Must be picklable, as it is sent to the executors with the task."""

    async def begin(self, producer: Producer) -> None:
        """Start a task; called before its first record."""

    async def finish(self, producer: Producer) -> TaskReceipt:
        """Wait until all records of a task are acknowledged; called after its last record."""

    def commit(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """Commit a batch; called on the driver when all tasks have finished. `batch_id` is None in batch queries."""

    def abort(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """Abort a batch; called on the driver when a task has finally failed. `receipts` are those of the other tasks."""


@dataclass(frozen=True)
class AtLeastOnce:
    """At-least-once delivery: records are visible as soon as they are written, as with Spark's own sink.

    A task or batch that is retried writes its records again, so readers may see duplicates. The records that the tasks of
    an aborted batch have written remain.
    """

    async def begin(self, producer: Producer) -> None:
        """Do nothing."""

    async def finish(self, producer: Producer) -> TaskReceipt:
        """Wait until all records are acknowledged; raise DeliveryFailedError if some cannot be delivered."""
        await producer.flush()
        return {}

    def commit(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """Do nothing: the records are visible already."""

    def abort(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """Do nothing: written records cannot be removed."""
