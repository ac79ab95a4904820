"""Finding out what a partition's files hold (Kafka's `LogLoader` and `LogSegment.recover`).

Every batch is read and its checksum tried. A process that was killed in the middle of an append left a torn batch at the
end of the last segment: it was not acknowledged, and is cut off. As in Kafka the log ends before a batch that is
damaged, wherever it stands; segments behind it are kept aside under another name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from asyncgroup.broker.log import FoundBatch
from asyncgroup.broker.segments import Batch, note_timestamp
from asyncgroup.broker.storage.file_segments import CLEANED, SUFFIX, FileSegment
from asyncgroup.broker.storage.open_files import OpenFiles
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.control import ControlType, read_control_type
from asyncgroup.wire.records import BatchHeader, crc_is_valid, read_batch_header

__all__ = ["Recovered", "recover"]

log = logging.getLogger(__name__)

_WINDOW: Final = 1 << 20
_PREFIX: Final = 12
ASIDE: Final = ".corrupt"
"""What is behind a damaged batch; for somebody to look at, it is not read again."""


class Recovered(NamedTuple):
    """The segments of a partition and their batches, in order."""

    segments: list[FileSegment]
    batches: list[FoundBatch]


def recover(files: OpenFiles, directory: Path) -> Recovered:
    """Read a partition's directory, which need not exist, and put it in order."""
    found = Recovered([], [])
    if not directory.is_dir():
        return found
    for leftover in directory.glob(f"*{CLEANED}"):
        leftover.unlink()
    paths = sorted(path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())
    end_offset, damaged = 0, False
    for path in paths:
        base_offset = int(path.stem)
        if damaged:
            log.error("%s is behind damaged batches and is put aside", path)
            files.forget(path)
            path.rename(path.with_suffix(SUFFIX + ASIDE))
        elif base_offset < end_offset:
            files.remove(path)  # compaction has put its batches into the segment before, and was killed then
        else:
            segment = FileSegment(files, path, base_offset)
            end_offset = max(end_offset, base_offset, _read(files, segment, found.batches))
            damaged = _cut(files, segment)
            found.segments.append(segment)
    return found


def _read(files: OpenFiles, segment: FileSegment, batches: list[FoundBatch]) -> int:
    """Take in all sound batches; the offset behind them. `segment.size` is then where they end."""
    end_offset = segment.base_offset
    for header, data in _batches(files, segment.path):
        kind = _control_type(header, data)
        if header.base_offset < end_offset or not crc_is_valid(data):
            break
        batch = Batch(header.base_offset, header.max_timestamp, segment, segment.size, header.size)
        batches.append(FoundBatch(batch, header, kind))
        note_timestamp(segment, header.max_timestamp)
        segment.size += header.size
        end_offset = header.next_offset
    return end_offset


def _control_type(header: BatchHeader, data: memoryview) -> ControlType | None:
    if not header.is_control:
        return None
    try:
        return read_control_type(data, header)
    except CorruptRecordsError:
        return None


def _batches(files: OpenFiles, path: Path) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Batch after batch, in windows of the file, as long as their form is right."""
    position = 0
    wanted = _WINDOW
    while window := files.read(path, position, wanted):
        start = 0
        view = memoryview(window)
        try:
            while (header := read_batch_header(window, start)) is not None and header.magic == 2:
                yield header, view[start : start + header.size]
                start += header.size
        except CorruptRecordsError:
            return
        if start == 0:
            size = _PREFIX + int.from_bytes(window[8:12], "big", signed=True)
            if header is not None or len(window) < wanted or size <= wanted:
                return
            wanted = size
            continue
        position, wanted = position + start, _WINDOW


def _cut(files: OpenFiles, segment: FileSegment) -> bool:
    """Cut what is behind the sound batches; whether there was anything."""
    excess = segment.path.stat().st_size - segment.size
    if excess:
        log.warning("%s: %d bytes at the end are no whole batch and are cut off", segment.path, excess)
        files.truncate(segment.path, segment.size)
    return excess > 0
