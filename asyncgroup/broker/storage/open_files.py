"""Files that are open for reading and writing at any place, not more of them than a process may have."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from asyncgroup.wire.primitives import Buffer

__all__ = ["OpenFiles"]

MOST_OPEN: Final = 256
"""The file that was used least recently is closed for one more; Linux gives a process 1024 by default."""


_OPEN: Final = os.O_RDWR | os.O_CLOEXEC


class OpenFiles:
    """Descriptors by path, opened when they are needed. Everything raises OSError where a disk does not do as told.

    `fsync`: what a method did is on the disk when it returns, names of files included.
    """

    def __init__(self, *, fsync: bool = False, most_open: int = MOST_OPEN) -> None:
        self.fsync = fsync
        self._most_open = most_open
        self._descriptors: dict[Path, int] = {}  # the one used last is last

    def __repr__(self) -> str:
        return f"<OpenFiles {len(self._descriptors)} open>"

    def _descriptor(self, path: Path, flags: int = _OPEN) -> int:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is None:
            descriptor = os.open(path, flags, 0o644)
            while len(self._descriptors) >= self._most_open:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
        self._descriptors[path] = descriptor
        return descriptor

    def create(self, path: Path) -> None:
        """An empty file, in directories that are made for it."""
        self.make_directory(path.parent)
        os.ftruncate(self._descriptor(path, _OPEN | os.O_CREAT), 0)
        self.keep_names(path.parent)

    def make_directory(self, path: Path) -> None:
        """A directory, in others that are made for it; no error if it is there."""
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for made in reversed(missing):
            self.keep_names(made.parent)

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
        """Let a file take the place of another one, which is there before or after a crash, but never half. The name is
        for `keep_names` to keep.
        """
        self.forget(target)
        self.forget(source)
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Delete a file; no error if there is none."""
        self.forget(path)
        path.unlink(missing_ok=True)
        self.keep_names(path.parent)

    def forget(self, path: Path) -> None:
        """Close a file, if it is open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files."""
        for path in list(self._descriptors):
            self.forget(path)

    def keep_names(self, directory: Path) -> None:
        """With fsync: let the names in a directory survive a loss of power."""
        if not self.fsync or not directory.exists():
            return
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
