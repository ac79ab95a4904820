"""Simulated crashes, power losses and disk errors of a process that writes files."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

__all__ = ["FailingDisk", "KillAtCall", "Killed", "PowerCut"]

CALLS: list[tuple[Any, str]] = [
    (os, "pwritev"),
    (os, "ftruncate"),
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "replace"),
    (Path, "unlink"),
    (shutil, "rmtree"),
]
"""All functions by which `storage` modifies files."""


class Killed(BaseException):
    """The simulated process was killed."""


def write_half(call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Perform half of a write."""
    if call.__name__ == "pwritev":
        data = b"".join(args[1])
        call(args[0], [data[: len(data) // 2]], args[2])


class KillAtCall:
    """Counts the calls that modify files and raises Killed at number `last` and at all later ones.

    `how`: the last call is done "before", "after" or half "in the middle" of the kill.
    """

    def __init__(self, patch: pytest.MonkeyPatch, last: int, how: str) -> None:
        self.calls = 0
        self._last = last
        self._how = how
        self._dead = False
        for owner, name in CALLS:
            patch.setattr(owner, name, self._deadly(getattr(owner, name)))

    def _deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if self._dead:
                raise Killed
            self.calls += 1
            if self.calls != self._last:
                return call(*args, **options)
            self._dead = True
            if self._how == "after":
                call(*args, **options)
            elif self._how == "in the middle":
                write_half(call, args)
            raise Killed

        return counted


class FailingDisk:
    """Lets the calls `first` to `first + count - 1` fail with EIO after half of a write; `failed` counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, first: int, count: int) -> None:
        self.calls = 0
        self.failed = 0
        self._failing = range(first, first + count)
        self._suspended = False
        for owner, name in CALLS:
            patch.setattr(owner, name, self._fallible(getattr(owner, name)))

    def _fallible(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.calls += not self._suspended
            if self._suspended or self.calls not in self._failing:
                return call(*args, **options)
            self.failed += 1
            write_half(call, args)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        return counted

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside the context no call fails or is counted."""
        self._suspended = True
        yield
        self._suspended = False


class _Entry(NamedTuple):
    inode: int
    is_directory: bool


class PowerCut:
    """A disk that keeps only what was synced: bytes of files, names in directories.

    The power fails before the call with number `last`. `leave` then creates a possible state of the disk after it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, _Entry]] = {}
        self._held: dict[int, int] = {}  # open descriptors by inode, so that no inode is reused

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)

    def watch(self, patch: pytest.MonkeyPatch, last: int) -> None:
        """Record synced bytes and names from now on, and cut the power before call number `last`."""
        patch.setattr(os, "fsync", self._synced)
        KillAtCall(patch, last, "before")

    def _synced(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            self._names[about.st_ino] = self._listed(Path(f"/proc/self/fd/{descriptor}").readlink())
        else:
            self._bytes[about.st_ino] = os.pread(descriptor, about.st_size, 0)

    def _listed(self, directory: Path) -> dict[str, _Entry]:
        found = {}
        for path in directory.iterdir():
            about = path.stat()
            found[path.name] = _Entry(about.st_ino, path.is_dir())
            if about.st_ino not in self._held:
                self._held[about.st_ino] = os.open(path, os.O_PATH | os.O_CLOEXEC)
        return found

    def leave(self, target: Path, rng: random.Random | None) -> None:
        """Write a possible state of the disk to `target`: what was synced, plus random parts of the rest if `rng`."""
        self._leave(_Entry(self._path.stat().st_ino, True), self._path, target, rng)

    def _leave(self, entry: _Entry, now: Path | None, target: Path, rng: random.Random | None) -> None:
        if not entry.is_directory:
            target.write_bytes(self._content(entry.inode, rng))
            return
        target.mkdir()
        kept = self._names.get(entry.inode, {})
        found = {} if rng is None or now is None else self._listed(now)
        for name in sorted({*kept, *found}):
            chosen = (kept if rng is None or rng.random() < 0.5 else found).get(name)
            if chosen is not None:
                inside = now / name if now is not None and found.get(name) == chosen else None
                self._leave(chosen, inside, target / name, rng)

    def _content(self, inode: int, rng: random.Random | None) -> bytes:
        synced = self._bytes.get(inode, b"")
        if rng is None or rng.random() < 0.4:
            return synced
        data = Path(f"/proc/self/fd/{self._held[inode]}").read_bytes()
        both = range(min(len(synced), len(data)))
        same = next((place for place in both if synced[place] != data[place]), len(both))
        cut = rng.randrange(same, len(data) + 1)
        return data if rng.random() < 0.4 else data[:cut] + bytes(rng.choice([0, len(data) - cut]))
