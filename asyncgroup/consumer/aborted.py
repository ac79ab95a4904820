"""Which batches of a fetch belong to aborted transactions (KIP-98; Kafka's `CompletedFetch`).

A `read_committed` answer ends before the first open transaction and lists the aborted ones that touch it, by producer
and first offset. The producer's abort marker ends each; whatever of the same producer follows is another transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from asyncgroup.wire.control import ControlType, read_control_type
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, crc_is_valid

__all__ = ["AbortedTransactions", "ListedTransaction"]


class ListedTransaction(Protocol):
    """An entry of a Fetch response's `aborted_transactions`."""

    producer_id: int
    first_offset: int


class AbortedTransactions:
    """Goes through the batches of one answer, in order.

    Nothing is kept from answer to answer: each lists what touches it, also transactions that began before it.
    """

    __slots__ = ("_check_crcs", "_coming", "_producers")

    def __init__(self, listed: Iterable[ListedTransaction], check_crcs: bool) -> None:
        self._coming = sorted(
            ((one.first_offset, one.producer_id) for one in listed), reverse=True
        )  # the next one is the last
        self._check_crcs = check_crcs
        self._producers: set[int] = set()

    def __repr__(self) -> str:
        return f"<AbortedTransactions {len(self._coming)} to come, {len(self._producers)} going on>"

    def is_aborted(self, header: BatchHeader, batch: Buffer) -> bool:
        """Whether the next batch (`batch` holds just its bytes) must not be handed out as it was aborted.

        Raises CorruptRecordsError for a marker that cannot be read although its checksum is right.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return False
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._producers.add(self._coming.pop()[1])
        if producer_id not in self._producers:
            return False
        if self._check_crcs and not crc_is_valid(batch):
            return False  # a header that cannot be believed; whoever reads the batch will say so
        if header.is_control:
            if read_control_type(batch, header, check_crc=False) is ControlType.ABORT:
                self._producers.discard(producer_id)
            return False
        return header.is_transactional
