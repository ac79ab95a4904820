"""What a task's records are worth, and who ends them: the place for transactions.

A task `begin`s before its first record and `finish`es after its last one was acknowledged; both run on an executor.
What `finish` returns travels in the task's commit message to the driver, which calls `commit` with the messages of all
tasks, or `abort` with those that there are. A delivery in transactions would leave them open at `finish`, hand over
their ids, and end them at `commit`; which batch a message belongs to is then known by its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from asyncgroup.producer import Producer

__all__ = ["AtLeastOnce", "DeliveryGuarantee", "TaskReceipt"]

TaskReceipt = Mapping[str, str]
"""What the driver has to know to end what a task has begun."""


class DeliveryGuarantee(Protocol):
    """How records become visible to readers. Can be pickled: it goes to the executors with the task."""

    async def begin(self, producer: Producer) -> None:
        """Before a task's first record."""

    async def finish(self, producer: Producer) -> TaskReceipt:
        """After a task's last record: when this returns, all its records are acknowledged."""

    def commit(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """On the driver, when all tasks of a batch have finished; `batch_id` is None outside streams."""

    def abort(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """On the driver, when a task has failed for good; `receipts` are those of the others."""


@dataclass(frozen=True)
class AtLeastOnce:
    """Records are visible as soon as they are written, as with Spark's own sink.

    A task or batch that is tried again writes its records again, so readers may see some of them twice; after a batch
    was aborted, what its tasks had written stays.
    """

    async def begin(self, producer: Producer) -> None:
        """Nothing has to be begun."""

    async def finish(self, producer: Producer) -> TaskReceipt:
        """Wait until everything is acknowledged; raises DeliveryFailedError for what was not."""
        await producer.flush()
        return {}

    def commit(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """Nothing was left open."""

    def abort(self, receipts: Sequence[TaskReceipt], batch_id: int | None) -> None:
        """Nothing can be taken back."""
