"""Filter for the batches of aborted transactions in a fetch (KIP-98; Kafka's `CompletedFetch`).

A `read_committed` response ends before the first open transaction and lists the aborted transactions that overlap it, by
producer id and first offset. Each ends at that producer's abort marker; later batches of the same producer belong to
another transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import ControlType, read_control_type

__all__ = ["AbortedTransactions", "ListedTransaction"]


class ListedTransaction(Protocol):
    """An entry of a Fetch response's `aborted_transactions`."""

    producer_id: int
    first_offset: int


class AbortedTransactions:
    """Tracks the aborted transactions while the batches of one response are read in order.

    No state is kept between responses: each lists all aborted transactions that overlap it, also those that began earlier.
    """

    __slots__ = ("_check_crcs", "_producers", "_upcoming")

    def __init__(self, listed: Iterable[ListedTransaction], check_crcs: bool) -> None:
        # (first offset, producer id); in descending order, so that `pop()` takes the next one
        self._upcoming = sorted(((one.first_offset, one.producer_id) for one in listed), reverse=True)
        self._check_crcs = check_crcs
        self._producers: set[int] = set()  # producers whose aborted transaction is open at the current batch

    def __repr__(self) -> str:
        return f"<AbortedTransactions {len(self._upcoming)} upcoming, {len(self._producers)} open>"

    def is_aborted(self, batch: BatchView) -> bool:
        """Return whether the next batch belongs to an aborted transaction.

        Raises CorruptRecordsError for a transaction marker that cannot be read although its checksum is right.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return False
        while self._upcoming and self._upcoming[-1][0] <= batch.last_offset:
            self._producers.add(self._upcoming.pop()[1])
        if producer_id not in self._producers:
            return False
        if self._check_crcs and not batch.crc_is_valid():
            return False  # the header cannot be trusted; reading the batch will raise the error
        if batch.is_control:
            if read_control_type(batch, check_crc=False) is ControlType.ABORT:
                self._producers.discard(producer_id)
            return False
        return batch.is_transactional
