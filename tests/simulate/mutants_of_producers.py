"""Mutations of the producer: bugs introduced on purpose, each as a patch for the duration of a block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final
from unittest.mock import PropertyMock, patch

from asyncgroup.config import ProducerConfig
from asyncgroup.error_codes import ErrorCode
from asyncgroup.producer.batches.batch import ProducerBatch
from asyncgroup.producer.batches.partition_queue import PartitionQueue
from asyncgroup.producer.sending.requests import PRODUCE_ACTIONS, ProduceAction

__all__ = ["PRODUCER_MUTANTS"]


def _without_sequence_numbers() -> AbstractContextManager[object]:
    """Batches have no sequence numbers, as in the producers before Kafka 0.11."""
    return patch.object(ProducerConfig, "effective_enable_idempotence", PropertyMock(return_value=False))


def _sent_again_under_new_numbers() -> AbstractContextManager[object]:
    """After any failure the sequence begins again under the next epoch, though the batch may be in the log."""
    fail = PartitionQueue.fail

    def renumbering(
        self: PartitionQueue, batch: ProducerBatch, at: float, *, is_out_of_order: bool = False
    ) -> None:
        self._restarts = True
        fail(self, batch, at, is_out_of_order=is_out_of_order)

    return patch.object(PartitionQueue, "fail", renumbering)


def _numbers_used_twice() -> AbstractContextManager[object]:
    """A batch that expires leaves its sequence numbers to the next one, which the broker may take for the same batch."""
    leave = PartitionQueue._leave

    def reusing(self: PartitionQueue, batch: ProducerBatch) -> None:
        leave(self, batch)
        if not self.sent:
            self._gap = None
            self._next_sequence = batch.sequence

    return patch.object(PartitionQueue, "_leave", reusing)


def _same_epoch() -> AbstractContextManager[object]:
    """The sequence begins again at 0 under the same epoch."""
    return patch.object(PartitionQueue, "_begin_epoch", PartitionQueue._renumber)


def _out_of_order_is_success() -> AbstractContextManager[object]:
    """A batch that the broker refuses as out of order is taken for one that it has already."""
    return patch.dict(PRODUCE_ACTIONS, {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ProduceAction.DONE})


def _later_batches_first() -> AbstractContextManager[object]:
    """A batch that failed is sent again after the ones that follow it, under new sequence numbers."""
    settle = PartitionQueue._settle

    def turning(self: PartitionQueue) -> None:
        if self._is_rewinding and not self._in_flight and len(self.sent) > 1:
            self.sent.rotate(-1)
            self._restarts = True
        settle(self)

    return patch.object(PartitionQueue, "_settle", turning)


PRODUCER_MUTANTS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "batches have no sequence numbers": _without_sequence_numbers,
    "a batch is sent again under new numbers": _sent_again_under_new_numbers,
    "sequence numbers are used twice": _numbers_used_twice,
    "a sequence begins again under the same epoch": _same_epoch,
    "out of order counts as success": _out_of_order_is_success,
    "a failed batch goes behind the next ones": _later_batches_first,
}
"""By name; each returns a context manager that applies the patch."""
