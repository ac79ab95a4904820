"""Recovery of a partition's segments from its files (Kafka's `LogLoader` and `LogSegment.recover`).

Every batch is read and its CRC checked. A process killed during an append leaves a torn batch at the end of the
last segment; it was not acknowledged and is cut off. As in Kafka, the log ends before the first damaged batch; here
a copy of everything from there on is kept in files with another suffix.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from asyncgroup.broker.log.batch_index import StoredBatch
from asyncgroup.broker.log.file_segments import CLEANED_SUFFIX, LOG_SUFFIX, FileSegment
from asyncgroup.broker.log.open_files import OpenFiles
from asyncgroup.broker.log.partition_log import RecoveredBatch
from asyncgroup.broker.log.segments import update_timestamps
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.batch_view import MAGIC_AT, BatchView, batch_at
from asyncgroup.wire.records import ControlType, read_control_type

__all__ = ["RecoveredLog", "recover"]

log = logging.getLogger(__name__)

_WINDOW: Final = 1 << 20
_MOST_OFFSETS: Final = 1 << 31
"""Range of offsets in a segment (`LogSegment.canConvertToRelativeOffset`), to detect bad offsets: the CRC excludes
them.
"""

CORRUPT_SUFFIX: Final = ".corrupt"
"""Suffix of files with a damaged batch, or after one; they are kept for inspection and not read again."""


class RecoveredLog(NamedTuple):
    """The segments of a partition and their batches, in order."""

    segments: list[FileSegment]
    batches: list[RecoveredBatch]


def recover(files: OpenFiles, directory: Path) -> RecoveredLog:
    """Read a partition's directory, which need not exist, and repair it."""
    found = RecoveredLog([], [])
    if not directory.is_dir():
        return found
    for leftover in directory.glob(f"*{CLEANED_SUFFIX}"):
        leftover.unlink()
    paths = sorted(path for path in directory.glob(f"*{LOG_SUFFIX}") if path.stem.isdecimal())
    end_offset, damaged = 0, False
    for path, following in zip_longest(paths, paths[1:]):
        base_offset = int(path.stem)
        if damaged:
            log.error(
                "%s comes after a damaged batch and is renamed to %s", path, LOG_SUFFIX + CORRUPT_SUFFIX
            )
            files.close_file(path)
            path.rename(path.with_suffix(LOG_SUFFIX + CORRUPT_SUFFIX))
        elif base_offset < end_offset:
            # compaction was killed after it had rewritten this segment into the previous one
            files.remove(path)
        else:
            segment = FileSegment(files, path, base_offset)
            end_offset = max(end_offset, base_offset, _read(files, segment, found.batches))
            goes_on = following is None or int(following.stem) == end_offset
            damaged = _cut(files, segment, goes_on=goes_on)
            found.segments.append(segment)
    return found


def _read(files: OpenFiles, segment: FileSegment, batches: list[RecoveredBatch]) -> int:
    """Add the segment's valid batches to `batches` and set `segment.size` to their end; return their next offset."""
    end_offset = segment.base_offset
    for batch in _batches(files, segment.path):
        kind = _control_type(batch)
        possible = end_offset <= batch.base_offset <= batch.last_offset < segment.base_offset + _MOST_OFFSETS
        if not possible or not batch.crc_is_valid():
            break
        stored = StoredBatch(batch.base_offset, batch.max_timestamp, segment, segment.size, batch.size)
        batches.append(RecoveredBatch(stored, batch.header_only(), kind))
        update_timestamps(segment, batch.max_timestamp)
        segment.size += batch.size
        end_offset = batch.next_offset
    return end_offset


def _control_type(batch: BatchView) -> ControlType | None:
    if not batch.is_control:
        return None
    try:
        return read_control_type(batch)
    except CorruptRecordsError:
        return None


def _batches(files: OpenFiles, path: Path) -> Iterator[BatchView]:
    """Yield the well-formed batches from the start of a file, reading it in windows; the CRC is not checked."""
    position = 0
    wanted = _WINDOW
    while window := files.read(path, position, wanted):
        start = 0
        try:
            while (batch := batch_at(window, start)) is not None and batch.magic == 2:
                yield batch
                start += batch.size
        except CorruptRecordsError:
            return
        if start == 0:
            if batch is not None or len(window) < wanted:
                return
            wanted = min(2 * wanted, path.stat().st_size - position)
            if wanted == len(window):
                return
            continue
        position, wanted = position + start, _WINDOW


def _cut(files: OpenFiles, segment: FileSegment, *, goes_on: bool) -> bool:
    """Truncate the file after its valid batches; return whether the rest was damage rather than a torn append.

    `goes_on`: the next segment begins where the valid batches end, or there is none.
    """
    path, end = segment.path, segment.size
    excess = path.stat().st_size - end
    if not excess:
        return False
    damaged = not goes_on or _holds_batch(files.read(path, end + 1, excess))
    if damaged:
        log.error(
            "%s: damaged at byte %d; the log ends there, and a copy is kept as %s", path, end, CORRUPT_SUFFIX
        )
        shutil.copyfile(path, path.with_suffix(LOG_SUFFIX + CORRUPT_SUFFIX))
    else:
        log.warning("%s: removing an incomplete batch of %d bytes at the end", path, excess)
    files.truncate(path, end)
    return damaged


def _holds_batch(data: bytes) -> bool:
    """Return whether there is a valid batch anywhere in these bytes."""
    magic = MAGIC_AT
    while (magic := data.find(b"\2", magic)) >= 0:
        start = magic - MAGIC_AT
        magic += 1
        try:
            batch = batch_at(data, start)
        except CorruptRecordsError:
            continue
        if batch is not None and batch.crc_is_valid():
            return True
    return False
