"""Reading a partition's buffer by column, for a range of offsets, without creating Record objects."""

from __future__ import annotations

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.decoding import read_columns
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import add_records
from asyncgroup.wire.batch_run import BatchRun
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import check_batch

__all__ = ["read_before"]


def read_before(buffer: RecordBuffer, columns: RecordColumns, end: int) -> bool:
    """Append the front batch's records before the offset `end` to columns; return False if there are none left.

    The counterpart of `RecordBuffer.advance`. Records from `end` on stay in the buffer. Raises as `advance`; a batch may also
    turn out to have no record to deliver.
    """
    queue = buffer.queue
    if buffer.decoded or not queue.batches:
        return _read_decoded(buffer, columns, end)
    if _read_run(buffer, columns, end):
        return True
    batch = queue.front_batch()
    floor, batch_end = buffer.floor, batch.next_offset
    if max(floor, batch.base_offset) >= end:
        return False
    limit, check_crc = queue.limit, queue.check_crcs
    try:
        check_batch(*queue.tp, batch, check_crc)
        read_columns(*queue.tp, batch, columns, start=floor, end=end, limit=limit, check_crc=check_crc)
    except CorruptRecordsError as error:
        buffer.skip(error)
        return True
    if batch_end <= end:
        buffer.drop_front()
    if batch_end > floor:
        buffer.floor = min(batch_end, end)
    return True


def _read_run(buffer: RecordBuffer, columns: RecordColumns, end: int) -> bool:
    """Append the records of the run in front; False if it is none, or has to be read batch by batch."""
    queue = buffer.queue
    run = queue.batches[0]
    if not isinstance(run, BatchRun) or run.base_offset < buffer.floor or run.next_offset > end:
        return False
    plain = queue.plain()
    if isinstance(plain, BatchView):
        return False
    try:
        read_columns(*queue.tp, plain, columns)
    except CorruptRecordsError:
        queue.take_apart()
        return False
    buffer.drop_front()
    buffer.floor = plain.next_offset
    return True


def _read_decoded(buffer: RecordBuffer, columns: RecordColumns, end: int) -> bool:
    """Append records that are decoded already: the rest of a begun batch."""
    ours = [record for record in reversed(buffer.decoded) if record.offset < end]
    if buffer.decoded and not ours:
        return False
    if not buffer.decoded and not buffer.queue.batches and buffer.fetch_offset < end:
        buffer.raise_broken()
    add_records(ours, columns)
    del buffer.decoded[len(buffer.decoded) - len(ours) :]
    if not buffer.decoded:
        buffer.release()
    return bool(ours or buffer.queue.batches)
