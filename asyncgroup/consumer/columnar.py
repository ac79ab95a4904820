"""Read record batches into columns, for Arrow, without an object for each record."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from asyncgroup.columns import RecordColumns
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.decompression import MAX_DECOMPRESSED
from asyncgroup.wire.records import raw_records, translate_error

__all__ = ["read_columns"]

_LAST: Final = 2**63 - 1


def read_columns(
    topic: str,
    partition: int,
    batch: BatchView,
    columns: RecordColumns,
    *,
    start: int = 0,
    end: int = _LAST,
    limit: int = MAX_DECOMPRESSED,
    check_crc: bool = True,
) -> None:
    """Append the records with start <= offset < end of a batch that `check_batch` has accepted.

    Raises as `decode_batch` does; then nothing is appended.
    """
    length = len(columns)
    base, next_offset = batch.base_offset, batch.next_offset
    try:
        raws, size = raw_records(batch, limit, check_crc)
        if not batch.is_dense:
            found = [raw for raw in raws if start <= raw.offset < end]
            offsets: range | list[int] = [raw.offset for raw in found]
            _append(found, columns)
        else:
            # dense: the index of a record in the batch is its offset minus `base`
            if start > base or end < next_offset:
                raws = islice(raws, max(0, start - base), max(0, min(next_offset, end) - base))
            offsets = range(max(base, start), min(next_offset, end))
            _append(raws, columns)
    except Exception as error:  # decompressors raise errors without a common base class
        columns.truncate(length)
        raise translate_error(error, topic, partition, batch) from error
    columns.size += size
    columns.add_run(topic, partition, batch.timestamp_type, offsets)


def _append(raws: Iterable[Any], columns: RecordColumns) -> None:
    """Append the fields of each record in one loop; a comprehension per column needs a list of all records, and is slower."""
    add_key, add_value, add_time = columns.keys.append, columns.values.append, columns.timestamps.append
    if columns.headers is None:
        for raw in raws:
            add_key(raw.key)
            add_value(raw.value)
            add_time(raw.timestamp)
        return
    add_headers = columns.headers.append
    for raw in raws:
        add_key(raw.key)
        add_value(raw.value)
        add_headers(raw.headers or ())
        add_time(raw.timestamp)
