"""Read a log record by record: all records, and the first or latest one by timestamp."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncgroup.broker.log.batch_index import StoredBatch
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.model import Record
from asyncgroup.wire.records import read_batch

__all__ = ["decode_stored_batch", "find_timestamp", "latest_timestamp", "read_records"]


def read_records(log: PartitionLog, offset: int = 0) -> Iterator[Record]:
    """Decode all records from `offset` on, including those of open and aborted transactions, without markers."""
    first = max(offset, log.start_offset)
    index = log.segments.batch_index
    for batch in index.batches[index.find(first) :]:
        yield from (record for record in decode_stored_batch(log, batch) if record.offset >= first)


def find_timestamp(log: PartitionLog, timestamp: int) -> Record | None:
    """Return the first record with this timestamp (ms) or a later one; markers count as records, as in Kafka."""
    index = log.segments.batch_index
    number = index.timestamps.first_at_least(timestamp)
    while number is not None:
        for record in decode_stored_batch(log, index.batches[number], markers=True):
            if record.timestamp >= timestamp and record.offset >= log.start_offset:
                return record
        # Compaction emptied the batch, or that record is before the log start offset: try the next batch.
        number = index.timestamps.first_at_least(timestamp, number + 1)
    return None


def latest_timestamp(log: PartitionLog) -> Record | None:
    """Return the first record, markers included, with the largest timestamp (KIP-734)."""
    newest: Record | None = None
    index = log.segments.batch_index
    for number in index.timestamps.latest_first():
        batch = index.batches[number]
        if newest is not None and batch.max_timestamp <= newest.timestamp:
            break
        for record in decode_stored_batch(log, batch, markers=True):
            later = newest is None or record.timestamp > newest.timestamp
            if later and record.offset >= log.start_offset:
                newest = record
    return newest


def decode_stored_batch(log: PartitionLog, stored: StoredBatch, *, markers: bool = False) -> Iterable[Record]:
    """Decode a batch lazily: a compressed one may hold millions of records."""
    batch = stored.read()
    if not batch.record_count or (batch.is_control and not markers):
        return ()
    return read_batch(log.topic, log.partition, batch)
