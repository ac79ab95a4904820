"""Segments in files: `<base offset>.log` with record batches only, the format of Kafka's log files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.batch_index import StoredBatch
from asyncgroup.broker.log.open_files import OpenFiles
from asyncgroup.broker.log.segments import Segment, append_stamped
from asyncgroup.wire.batch_view import BatchView, stamped
from asyncgroup.wire.primitives import Buffer

__all__ = ["CLEANED_SUFFIX", "LOG_SUFFIX", "FileSegment", "FileStore", "segment_path"]

LOG_SUFFIX: Final = ".log"
CLEANED_SUFFIX: Final = ".cleaned"
"""Suffix of a file that compaction is writing; recovery deletes it after a crash."""


def segment_path(directory: Path, base_offset: int) -> Path:
    """Return the path of a segment's file, with Kafka's name (`LogFileUtils.logFile`)."""
    return directory / f"{base_offset:020}{LOG_SUFFIX}"


class FileSegment:
    """A segment in one file, which is also its only chunk."""

    __slots__ = ("_files", "base_offset", "first_timestamp", "max_timestamp", "path", "size")

    def __init__(self, files: OpenFiles, path: Path, base_offset: int) -> None:
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.first_timestamp = -1

    def __repr__(self) -> str:
        return f"<FileSegment {self.path.name}, {self.size} bytes>"

    @property
    def used(self) -> int:
        """See `SegmentChunk`."""
        return self.size

    def read(self, position: int, size: int) -> bytes:
        """See `SegmentChunk`. Raise KafkaStorageError."""
        try:
            data = self._files.read(self.path, position, size)
        except OSError as error:
            raise KafkaStorageError(str(error)) from error
        if len(data) < size:
            raise KafkaStorageError(f"{self.path}: the file ends before byte {position + size}")
        return data

    def append(self, data: Buffer, base_offset: int, leader_epoch: int) -> tuple[FileSegment, int]:
        """See `Segment`. The batch is with the operating system when this returns, with fsync on the disk."""
        position = self.size
        self._files.write(self.path, position, stamped(data, base_offset, leader_epoch))
        self.size = position + len(data)
        return self, position

    def truncate(self, batch: StoredBatch) -> None:
        """See `Segment`. Fetches hold copies, so the bytes can be overwritten."""
        self._files.truncate(self.path, batch.position)


class FileStore:
    """`SegmentStore` in a directory, which is created with the first segment."""

    def __init__(self, files: OpenFiles, directory: Path, save_start_offset: Callable[[int], None]) -> None:
        self._files = files
        self.directory = directory
        self._save_start_offset = save_start_offset
        self._obsolete: list[Segment] = []
        """Segments whose batches were rewritten into another one, but whose files could not be deleted yet."""

    def __repr__(self) -> str:
        return f"<FileStore {self.directory}>"

    def create(self, base_offset: int) -> FileSegment:
        """See `SegmentStore`."""
        path = segment_path(self.directory, base_offset)
        self._files.create(path)
        self._obsolete = [one for one in self._obsolete if one.base_offset != base_offset]
        return FileSegment(self._files, path, base_offset)

    def remove(self, segments: Sequence[Segment]) -> None:
        """See `SegmentStore`."""
        for segment in segments:
            self._files.remove(segment_path(self.directory, segment.base_offset))

    def rewrite(
        self, old: Sequence[Segment], batches: Iterable[BatchView]
    ) -> tuple[FileSegment, list[tuple[StoredBatch, int]]]:
        """See `SegmentStore`. The first file is replaced atomically, then the others are deleted.

        If a crash leaves one of the others, recovery would bring back records that were compacted away. This is
        harmless while the later records of their keys exist, so no later segment may be rewritten before all of
        them are deleted.
        """
        self._remove_obsolete()
        base_offset = old[0].base_offset
        path = segment_path(self.directory, base_offset)
        cleaned = FileSegment(self._files, path.with_suffix(CLEANED_SUFFIX), base_offset)
        self._files.create(cleaned.path)
        try:
            written = [append_stamped(cleaned, batch) for batch in batches]
            self._files.replace(cleaned.path, path)
        except (OSError, KafkaStorageError):
            self._files.remove(cleaned.path)
            raise
        cleaned.path = path
        self._obsolete = list(old[1:])
        with suppress(OSError):
            self._files.sync_directory(self.directory)
            self._remove_obsolete()
        return cleaned, written

    def _remove_obsolete(self) -> None:
        while self._obsolete:
            self.remove(self._obsolete[:1])
            del self._obsolete[0]

    def save_start_offset(self, start_offset: int) -> None:
        """See `SegmentStore`."""
        self._save_start_offset(start_offset)
