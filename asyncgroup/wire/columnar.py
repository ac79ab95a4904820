"""Reading record batches of magic 2 column by column: for Arrow, which needs no object for each record."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from asyncgroup.columns import RecordColumns
from asyncgroup.wire.decompression import MAX_DECOMPRESSED
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, raw_records, translate_error

__all__ = ["is_dense", "read_columns"]

_LAST: Final = 2**63 - 1


def is_dense(header: BatchHeader) -> bool:
    """Whether every offset that a batch stands for has its record; compaction leaves gaps."""
    return header.record_count == header.last_offset_delta + 1


def read_columns(
    topic: str,
    partition: int,
    batch: Buffer,
    header: BatchHeader,
    columns: RecordColumns,
    *,
    start: int = 0,
    end: int = _LAST,
    limit: int = MAX_DECOMPRESSED,
) -> None:
    """Append the records with start <= offset < end of a batch of magic 2 that `check_batch` has passed.

    Raises as `decode_batch` does; nothing is appended then.
    """
    length = len(columns)
    base, behind = header.base_offset, header.next_offset
    try:
        raws, size = raw_records(batch, header, limit)
        if not is_dense(header):
            found = [raw for raw in raws if start <= raw.offset < end]
            offsets: range | list[int] = [raw.offset for raw in found]
            _append(found, columns)
        else:
            if start > base or end < behind:
                raws = islice(raws, max(0, start - base), max(0, min(behind, end) - base))
            offsets = range(max(base, start), min(behind, end))
            _append(raws, columns)
    except Exception as error:  # each decompressor has errors of its own, most of them without a common base
        columns.truncate(length)
        raise translate_error(error, topic, partition, header) from error
    columns.size += size
    columns.add_run(topic, partition, header.timestamp_type, offsets)


def _append(raws: Iterable[Any], columns: RecordColumns) -> None:
    """One loop with three appends: three comprehensions would have to keep all the raw records, which took longer."""
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
