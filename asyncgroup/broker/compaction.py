"""Compaction of a log: of each key the last record stays (Kafka's `LogCleaner`, `Cleaner` and `RecordFilter`).

Offsets never change, so gaps come to be. Records of aborted transactions go, their marker goes once nothing is left of
them; tombstones and such markers first get a delete horizon (KIP-534) and go when that has passed. The last batch of
each producer that may still write is kept, if need be empty, since its last sequence number can be read off it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from asyncgroup.broker.producer_state import AbortedTransaction, LastRecord
from asyncgroup.broker.segments import Batch
from asyncgroup.model import Record
from asyncgroup.wire.compacted_batches import delete_horizon, empty_batch, rewrite_batch
from asyncgroup.wire.control import ControlType, read_control_type
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, decode_batch, read_batch_header

__all__ = ["Cleaner", "Keys"]


class _Transactions:
    """Which transactions the batches seen so far belong to (`CleanedTransactionMetadata`)."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        self._committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions of which there still was something."""

    def data(self, header: BatchHeader) -> bool:
        """A batch of records: whether it was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def marker(self, header: BatchHeader, kind: ControlType | None) -> bool:
        """A control batch: whether nothing of its transaction is left, so that it may go."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if kind is ControlType.COMMIT:
            was_there = producer_id in self._committed
            self._committed.discard(producer_id)
            return not was_there
        if kind is ControlType.ABORT:
            aborted = self._aborted.pop(producer_id, None)
            if aborted is None or producer_id not in self._seen:
                return True
            self._seen.discard(producer_id)
            self.kept.append(aborted)
            return False
        return header.record_count == 0

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            one = self._coming.pop()
            self._aborted.setdefault(one.producer_id, one)


class Keys:
    """The last offset of each key in some batches, those of aborted transactions left out."""

    def __init__(self, batches: Iterable[Batch], aborted: Iterable[AbortedTransaction]) -> None:
        transactions = _Transactions(aborted)
        self._last: dict[bytes, int] = {}
        for batch in batches:
            data = batch.bytes()
            header = _header(data)
            if header.is_control:
                transactions.marker(header, read_control_type(data, header, check_crc=False))
            elif not transactions.data(header):
                for record in _records(data, header):
                    if record.key is not None:
                        self._last[bytes(record.key)] = record.offset

    def is_last(self, record: Record) -> bool:
        """Whether no later record has its key. One without a key has no place in a compacted log."""
        return record.key is not None and record.offset >= self._last.get(bytes(record.key), -1)


class Cleaner:
    """One pass over the batches of a log, from its start on.

    `last_records`: the last record of each producer that may still write. `upper_bound`: where the pass ends; the batch
    before it stays, if need be empty, as nothing else says where the log goes on.
    """

    def __init__(
        self,
        keys: Keys,
        aborted: Sequence[AbortedTransaction],
        last_records: Mapping[int, LastRecord],
        *,
        upper_bound: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._keys, self._last_records = keys, last_records
        self._transactions = _Transactions(aborted)
        self._upper_bound = upper_bound
        self._now, self._delete_retention = now_ms, delete_retention_ms

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions that readers still have to hear of, in order of their markers."""
        return sorted(self._transactions.kept, key=lambda one: one.last_offset)

    def clean(self, batch: Batch) -> tuple[BatchHeader, Buffer] | None:
        """What is left of the next batch; None if nothing is."""
        data = batch.bytes()
        header = _header(data)
        horizon = delete_horizon(header)
        due = horizon is not None and horizon <= self._now
        if header.is_control:
            over = self._transactions.marker(header, read_control_type(data, header, check_crc=False))
            drops = over and due
            records = [] if drops else _records(data, header)
            kept = records
        else:
            over = False
            drops = self._transactions.data(header)
            records = [] if drops else _records(data, header)
            kept = [one for one in records if self._keys.is_last(one) and (one.value is not None or not due)]
        if not kept:
            return _parsed(empty_batch(header)) if self._stays_empty(header) else None
        tombstones = not header.is_control and any(one.value is None for one in kept)
        if horizon is None and (over or tombstones):
            return _parsed(rewrite_batch(header, kept, self._now + self._delete_retention))
        return (
            (header, data)
            if len(kept) == header.record_count
            else _parsed(rewrite_batch(header, kept, horizon))
        )

    def _stays_empty(self, header: BatchHeader) -> bool:
        if header.next_offset == self._upper_bound:
            return True
        last = self._last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset is None:
            return header.is_control and header.producer_epoch == last.epoch
        return header.last_offset == last.offset


def _header(data: Buffer) -> BatchHeader:
    header = read_batch_header(data)
    assert header is not None
    return header


def _parsed(data: bytes) -> tuple[BatchHeader, Buffer]:
    return _header(data), data


def _records(data: Buffer, header: BatchHeader) -> list[Record]:
    return decode_batch("", -1, data, header, check_crc=False) if header.record_count else []
