"""Cache of open file descriptors: reads and writes at positions, within the limit of open files per process."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from asyncgroup.wire.primitives import Buffer

__all__ = ["OpenFiles"]

log = logging.getLogger(__name__)

MAX_OPEN: Final = 256
"""Number of files kept open; beyond it the least recently used one is closed.

Linux allows a process 1024 by default.
"""

_OPEN: Final = os.O_RDWR  # no child process inherits descriptors of `os.open` (PEP 446)


class OpenFiles:
    """File descriptors by path, opened on demand. All methods raise OSError, which names the file, if the disk fails.

    The first failure of a file is logged, and the next success; retries between them are not.
    `fsync`: the effect of a method, including names of files, is on the disk when it returns.
    """

    def __init__(self, *, fsync: bool = False, max_open: int = MAX_OPEN) -> None:
        self.fsync = fsync
        self._max_open = max_open
        self._descriptors: dict[Path, int] = {}  # in order of use, the most recently used last
        self._failing: set[tuple[str, Path]] = set()  # operations that failed the last time, by file

    def __repr__(self) -> str:
        return f"<OpenFiles {len(self._descriptors)} open>"

    def _descriptor(self, path: Path, flags: int = _OPEN) -> int:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is None:
            descriptor = os.open(path, flags, 0o644)
            while len(self._descriptors) >= self._max_open:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
        self._descriptors[path] = descriptor
        return descriptor

    def create(self, path: Path) -> None:
        """Create an empty file and its parent directories."""
        self.make_directory(path.parent)
        with self._naming_errors("create", path):
            os.ftruncate(self._descriptor(path, _OPEN | os.O_CREAT), 0)
        self.sync_directory(path.parent)

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents; no error if it exists."""
        missing = [one for one in (path, *path.parents) if not one.exists()]
        with self._naming_errors("create", path):
            path.mkdir(parents=True, exist_ok=True)
        for made in reversed(missing):
            self.sync_directory(made.parent)

    def write(self, path: Path, position: int, parts: list[Buffer]) -> None:
        """Write `parts` at `position`, the end of the file; after an OSError the file has its former length."""
        try:
            descriptor = self._descriptor(path)
            try:
                written = os.pwritev(descriptor, parts, position)
                rest = sum(len(part) for part in parts) - written
                # the rest again: the system says only then why it wrote less
                if rest and os.pwritev(descriptor, [b"".join(parts)[-rest:]], position + written) < rest:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if self.fsync:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, position)
                raise
        except OSError as error:
            self._fail("write", path, error)
        if self._failing:
            self._succeed("write", path)

    def read(self, path: Path, position: int, size: int) -> bytes:
        """Read `size` bytes from `position`, fewer at the end of the file."""
        try:
            data = os.pread(self._descriptor(path), size, position)
        except OSError as error:
            self._fail("read", path, error)
        if self._failing:
            self._succeed("read", path)
        return data

    def truncate(self, path: Path, size: int) -> None:
        """Truncate a file to `size` bytes."""
        with self._naming_errors("truncate", path):
            descriptor = self._descriptor(path)
            os.ftruncate(descriptor, size)
            if self.fsync:
                os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename `source` to `target` atomically, replacing it. `sync_directory` makes the new name durable."""
        self.close_file(target)
        self.close_file(source)
        with self._naming_errors("rename", target):
            source.replace(target)
        self._forget(source)
        self._forget(target)

    def remove(self, path: Path) -> None:
        """Delete a file; no error if there is none."""
        self.close_file(path)
        with self._naming_errors("delete", path):
            path.unlink(missing_ok=True)
        self._forget(path)
        self.sync_directory(path.parent)

    def close_file(self, path: Path) -> None:
        """Close a file, if it is open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_below(self, directory: Path) -> None:
        """Close the files in a directory that is to be deleted, and forget their failures."""
        for path in [one for one in self._descriptors if directory in one.parents]:
            self.close_file(path)
        self._failing = {
            (what, path) for what, path in self._failing if directory not in (path, *path.parents)
        }

    def close(self) -> None:
        """Close all files."""
        for path in list(self._descriptors):
            self.close_file(path)

    def sync_directory(self, directory: Path) -> None:
        """With fsync: make the names in a directory durable."""
        if not self.fsync or not directory.exists():
            return
        with self._naming_errors("sync", directory):
            descriptor = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @contextmanager
    def _naming_errors(self, what: str, path: Path) -> Iterator[None]:
        """Context manager: see `_fail`. `read` and `write` do without it, because it costs more than they do."""
        try:
            yield
        except OSError as error:
            self._fail(what, path, error)
        if self._failing:
            self._succeed(what, path)

    def _fail(self, what: str, path: Path, error: OSError) -> NoReturn:
        """Raise the error with the name of the file, which those of calls with a descriptor do not have.

        A failure ends with the same operation: on a full disk files can still be created and read.
        """
        named = error
        if error.filename is None and error.errno is not None:
            named = OSError(error.errno, error.strerror, str(path))
        if (what, path) not in self._failing:
            self._failing.add((what, path))
            log.error("data directory, %s: %s", what, named)
        if named is error:
            raise error
        raise named from error

    def _succeed(self, what: str, path: Path) -> None:
        if (what, path) in self._failing:
            self._failing.discard((what, path))
            log.info("data directory, %s: %s succeeds again", what, path)

    def _forget(self, path: Path) -> None:
        """Forget the failures of a file that was deleted or renamed."""
        if self._failing:
            self._failing = {each for each in self._failing if each[1] != path}
