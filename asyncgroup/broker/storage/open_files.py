"""Files that are open for reading and writing at any place, not more of them than a process may have."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from asyncgroup.wire.primitives import Buffer

__all__ = ["OpenFiles", "sync_directory"]

MOST_OPEN: Final = 256
"""The file that was used least recently is closed for one more; Linux gives a process 1024 by default."""


class OpenFiles:
    """Descriptors by path, opened when they are needed. `fsync`: what is written is on the disk when `write` returns."""

    def __init__(self, *, fsync: bool = False, most_open: int = MOST_OPEN) -> None:
        self.fsync = fsync
        self._most_open = most_open
        self._descriptors: dict[Path, int] = {}  # the one used last is last

    def __repr__(self) -> str:
        return f"<OpenFiles {len(self._descriptors)} open>"

    def _descriptor(self, path: Path) -> int:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            while len(self._descriptors) >= self._most_open:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
        self._descriptors[path] = descriptor
        return descriptor

    def create(self, path: Path) -> None:
        """An empty file, in directories that are made for it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        os.ftruncate(self._descriptor(path), 0)
        if self.fsync:
            sync_directory(path.parent)

    def write(self, path: Path, position: int, parts: list[Buffer]) -> None:
        """Write all of this at `position`, or raise OSError and leave the file as long as it was."""
        descriptor = self._descriptor(path)
        try:
            written = os.pwritev(descriptor, parts, position)
            if written < sum(len(part) for part in parts):
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {path}")
            if self.fsync:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, position)
            raise

    def read(self, path: Path, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on, fewer at the file's end."""
        return os.pread(self._descriptor(path), size, position)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file."""
        descriptor = self._descriptor(path)
        os.ftruncate(descriptor, size)
        if self.fsync:
            os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Let a file take the place of another one, which is there before or after a crash, but never half."""
        self.forget(target)
        self.forget(source)
        source.replace(target)
        if self.fsync:
            sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        """Delete a file; no error if there is none."""
        self.forget(path)
        path.unlink(missing_ok=True)

    def forget(self, path: Path) -> None:
        """Close a file, if it is open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files."""
        for path in list(self._descriptors):
            self.forget(path)


def sync_directory(path: Path) -> None:
    """Let the names in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
