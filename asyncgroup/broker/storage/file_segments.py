"""Segments in files: `<base offset>.log`, whole record batches and nothing else, as Kafka's own log files are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.segments import Batch, Segment, write_again
from asyncgroup.broker.storage.open_files import OpenFiles
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader

__all__ = ["CLEANED", "SUFFIX", "FileSegment", "FileStore", "segment_path"]

SUFFIX: Final = ".log"
CLEANED: Final = ".cleaned"
"""What compaction is still writing; a crash leaves it behind, and it is thrown away."""

_STAMPED = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_LENGTH_AT: Final = 8


def segment_path(directory: Path, base_offset: int) -> Path:
    """Kafka's name for a segment (`LogFileUtils.logFile`)."""
    return directory / f"{base_offset:020}{SUFFIX}"


class FileSegment:
    """A segment that is one file, and as such its own chunk."""

    __slots__ = ("_files", "base_offset", "first_timestamp", "max_timestamp", "path", "size")

    def __init__(self, files: OpenFiles, path: Path, base_offset: int) -> None:
        self._files, self.path = files, path
        self.base_offset = base_offset
        self.size = 0
        self.max_timestamp = self.first_timestamp = -1

    def __repr__(self) -> str:
        return f"<FileSegment {self.path.name}, {self.size} bytes>"

    @property
    def used(self) -> int:
        """See `Chunk`."""
        return self.size

    def read(self, position: int, size: int) -> bytes:
        """See `Chunk`. Raises StorageError."""
        try:
            data = self._files.read(self.path, position, size)
        except OSError as error:
            raise StorageError(str(error)) from error
        if len(data) < size:
            raise StorageError(f"{self.path}: ends before byte {position + size}")
        return data

    def append(self, data: Buffer, base_offset: int, leader_epoch: int) -> tuple[FileSegment, int]:
        """See `Segment`. The operating system has it when this returns, with fsync the disk."""
        position = self.size
        (length,) = _LENGTH.unpack_from(data, _LENGTH_AT)
        stamped = _STAMPED.pack(base_offset, length, leader_epoch)
        self._files.write(self.path, position, [stamped, memoryview(data)[_STAMPED.size :]])
        self.size = position + len(data)
        return self, position

    def cut(self, batch: Batch) -> None:
        """See `Segment`. What a fetch has handed out are copies."""
        self._files.truncate(self.path, batch.position)


class FileStore:
    """The segments of one partition, in a directory that is made with the first of them."""

    def __init__(self, files: OpenFiles, directory: Path, start_moved: Callable[[int], None]) -> None:
        self._files, self.directory = files, directory
        self._start_moved = start_moved
        self._rewritten: list[Segment] = []
        """Segments whose batches are in another one by now, but whose files could not be deleted."""

    def __repr__(self) -> str:
        return f"<FileStore {self.directory}>"

    def create(self, base_offset: int) -> FileSegment:
        """See `SegmentStore`."""
        path = segment_path(self.directory, base_offset)
        self._files.create(path)
        self._rewritten = [one for one in self._rewritten if one.base_offset != base_offset]
        return FileSegment(self._files, path, base_offset)

    def remove(self, segments: Sequence[Segment]) -> None:
        """See `SegmentStore`."""
        for segment in segments:
            self._files.remove(segment_path(self.directory, segment.base_offset))

    def rewrite(
        self, old: Sequence[Segment], batches: Iterable[tuple[BatchHeader, Buffer]]
    ) -> tuple[FileSegment, list[tuple[Batch, int]]]:
        """See `SegmentStore`. The first file is replaced in one step. Files of the others that are found by the next
        recovery bring records back that later ones have overwritten; these are there as long as no later segment is
        rewritten, which therefore does not begin before.
        """
        self._remove_rewritten()
        base_offset = old[0].base_offset
        path = segment_path(self.directory, base_offset)
        cleaned = FileSegment(self._files, path.with_suffix(CLEANED), base_offset)
        self._files.create(cleaned.path)
        try:
            written = [write_again(cleaned, header, data) for header, data in batches]
            self._files.replace(cleaned.path, path)
        except (OSError, StorageError):
            self._files.remove(cleaned.path)
            raise
        cleaned.path = path
        self._rewritten = list(old[1:])
        with suppress(OSError):
            self._files.keep_names(self.directory)
            self._remove_rewritten()
        return cleaned, written

    def _remove_rewritten(self) -> None:
        while self._rewritten:
            self.remove(self._rewritten[:1])
            del self._rewritten[0]

    def start_moved(self, start_offset: int) -> None:
        """See `SegmentStore`."""
        self._start_moved(start_offset)
