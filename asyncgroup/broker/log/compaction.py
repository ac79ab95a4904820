"""Log compaction: keep the last record of each key (Kafka's `Cleaner` and its `RecordFilter`).

Records keep their offsets, so the log gets gaps. Records of aborted transactions are removed; an abort marker is
removed once none of its transaction's records is left. Tombstones and such markers first get a delete horizon
(KIP-534) and are removed after it has passed. The last batch of each active producer is kept, empty if necessary,
because it holds the producer's last sequence number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from asyncgroup.broker.log.batch_index import StoredBatch
from asyncgroup.broker.log.compacted_batches import empty_batch, rewrite_batch
from asyncgroup.broker.log.producer_state import AbortedTransaction, LastRecord
from asyncgroup.model import Record
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import ControlType, decode_batch, read_control_type

__all__ = ["Cleaner", "OffsetMap"]


class _CleanedTransactions:
    """Tracks which transactions are aborted while batches are read in order (Kafka's `CleanedTransactionMetadata`)."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)  # the next one last
        self._aborted: dict[int, AbortedTransaction] = {}  # begun before the current offset, by producer id
        self._with_records: set[int] = set()  # producers with records of their current aborted transaction
        self._committed: set[int] = set()  # producers with records of a transaction that will commit
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions whose records were still in the log, in the order of their markers."""

    def on_batch(self, batch: BatchView) -> bool:
        """Read a batch of records; return whether its transaction was aborted."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborted:
            self._with_records.add(batch.producer_id)
            return True
        self._committed.add(batch.producer_id)
        return False

    def on_control_batch(self, batch: BatchView, kind: ControlType | None) -> bool:
        """Read a control batch; return whether none of its transaction's records is left, so that it may be removed."""
        self._begin_up_to(batch.last_offset)
        producer_id = batch.producer_id
        if kind is ControlType.COMMIT:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        if kind is ControlType.ABORT:
            aborted = self._aborted.pop(producer_id, None)
            if aborted is None or producer_id not in self._with_records:
                return True
            self._with_records.discard(producer_id)
            self.kept.append(aborted)
            return False
        return batch.record_count == 0

    def _begin_up_to(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            one = self._upcoming.pop()
            self._aborted.setdefault(one.producer_id, one)


class OffsetMap:
    """The last offset of each key in `batches`, without records of aborted transactions (Kafka's `OffsetMap`)."""

    def __init__(self, batches: Iterable[StoredBatch], aborted: Iterable[AbortedTransaction]) -> None:
        transactions = _CleanedTransactions(aborted)
        self._last: dict[bytes, int] = {}
        for stored in batches:
            batch = stored.read()
            if batch.is_control:
                transactions.on_control_batch(batch, read_control_type(batch, check_crc=False))
            elif not transactions.on_batch(batch):
                for record in _records(batch):
                    if record.key is not None:
                        self._last[bytes(record.key)] = record.offset

    def is_latest(self, record: Record) -> bool:
        """Return whether no later record has the same key; False for a record without a key."""
        return record.key is not None and record.offset >= self._last.get(bytes(record.key), -1)


class Cleaner:
    """One cleaning pass over the batches of a log, from its start to `upper_bound`.

    `last_records` is the last record of each active producer. The last batch before `upper_bound` is kept, empty if
    necessary: it shows at which offset the log continues.
    """

    def __init__(
        self,
        keys: OffsetMap,
        aborted: Sequence[AbortedTransaction],
        last_records: Mapping[int, LastRecord],
        *,
        upper_bound: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._keys = keys
        self._last_records = last_records
        self._transactions = _CleanedTransactions(aborted)
        self._upper_bound = upper_bound
        self._now = now_ms
        self._delete_retention = delete_retention_ms

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose records are still in the log, in the order of their markers."""
        return sorted(self._transactions.kept, key=lambda one: one.last_offset)

    def clean(self, stored: StoredBatch) -> BatchView | None:
        """Return what is left of the next batch, or None if it is removed."""
        batch = stored.read()
        horizon = batch.delete_horizon
        past_horizon = horizon is not None and horizon <= self._now
        if batch.is_control:
            removable = self._transactions.on_control_batch(batch, read_control_type(batch, check_crc=False))
            kept = [] if removable and past_horizon else _records(batch)
        else:
            removable = False
            records = [] if self._transactions.on_batch(batch) else _records(batch)
            kept = [
                one
                for one in records
                if self._keys.is_latest(one) and (one.value is not None or not past_horizon)
            ]
        if not kept:
            return BatchView(empty_batch(batch)) if self._stays_empty(batch) else None
        tombstones = not batch.is_control and any(one.value is None for one in kept)
        if horizon is None and (removable or tombstones):
            return BatchView(rewrite_batch(batch, kept, self._now + self._delete_retention))
        return batch if len(kept) == batch.record_count else BatchView(rewrite_batch(batch, kept, horizon))

    def _stays_empty(self, batch: BatchView) -> bool:
        """Return whether a batch without records is kept: the last one, or the last of an active producer."""
        if batch.next_offset == self._upper_bound:
            return True
        last = self._last_records.get(batch.producer_id) if batch.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset is None:
            return batch.is_control and batch.producer_epoch == last.epoch
        return batch.last_offset == last.offset


def _records(batch: BatchView) -> list[Record]:
    return decode_batch("", -1, batch, check_crc=False) if batch.record_count else []
