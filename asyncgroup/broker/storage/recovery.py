"""Finding out what a partition's files hold (Kafka's `LogLoader` and `LogSegment.recover`).

Every batch is read and its checksum tried. A process that was killed in the middle of an append left a torn batch at the
end of the last segment: it was not acknowledged, and is cut off. As in Kafka the log ends before a batch that is
damaged, wherever it stands; but what was there from that batch on is kept aside under another name.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from itertools import zip_longest
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
_MAGIC_AT: Final = 16
_MOST_OFFSETS: Final = 1 << 31
"""In a segment (`LogSegment.canConvertToRelativeOffset`); offsets are not in a batch's checksum."""
ASIDE: Final = ".corrupt"
"""Files with a damaged batch, or behind one; for somebody to look at, they are not read again."""


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
    for path, following in zip_longest(paths, paths[1:]):
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
            goes_on = following is None or int(following.stem) == end_offset
            damaged = _cut(files, segment, goes_on=goes_on)
            found.segments.append(segment)
    return found


def _read(files: OpenFiles, segment: FileSegment, batches: list[FoundBatch]) -> int:
    """Take in all sound batches; the offset behind them. `segment.size` is then where they end."""
    end_offset = segment.base_offset
    for header, data in _batches(files, segment.path):
        kind = _control_type(header, data)
        possible = (
            end_offset <= header.base_offset <= header.last_offset < segment.base_offset + _MOST_OFFSETS
        )
        if not possible or not crc_is_valid(data):
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
            if header is not None or len(window) < wanted:
                return
            wanted = min(2 * wanted, path.stat().st_size - position)
            if wanted == len(window):
                return
            continue
        position, wanted = position + start, _WINDOW


def _cut(files: OpenFiles, segment: FileSegment, *, goes_on: bool) -> bool:
    """Cut what is behind the sound batches; whether it is more than an append that was cut short.

    `goes_on`: the next segment begins where the sound batches end, or there is none.
    """
    path, end = segment.path, segment.size
    excess = path.stat().st_size - end
    if not excess:
        return False
    damaged = not goes_on or _holds_batch(files.read(path, end + 1, excess))
    if damaged:
        log.error("%s: damaged at byte %d; a copy is put aside, and the log ends here", path, end)
        shutil.copyfile(path, path.with_suffix(SUFFIX + ASIDE))
    else:
        log.warning("%s: %d bytes at the end are no whole batch and are cut off", path, excess)
    files.truncate(path, end)
    return damaged


def _holds_batch(data: bytes) -> bool:
    """Whether there is a sound batch anywhere in these bytes."""
    view, magic = memoryview(data), _MAGIC_AT
    while (magic := data.find(b"\2", magic)) >= 0:
        start = magic - _MAGIC_AT
        magic += 1
        try:
            header = read_batch_header(data, start)
        except CorruptRecordsError:
            continue
        if header is not None and crc_is_valid(view[start : start + header.size]):
            return True
    return False
