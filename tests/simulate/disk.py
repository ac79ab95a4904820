"""Simulate a power cut on disk: all acknowledged writes are complete, and some files end in a partial write."""

from __future__ import annotations

import random
from pathlib import Path

__all__ = ["PowerCut", "tear"]


class PowerCut(Exception):
    """The error with which a cluster is left at a power cut, without an orderly shutdown."""


def tear(data_dir: Path, rng: random.Random) -> int:
    """Append a partial write to some of the files; return how many.

    Files are visited in the order of their names, so that only `rng` decides.
    """
    directories = sorted({path.parent for path in data_dir.rglob("*.log")})
    last = [max(directory.glob("*.log")) for directory in directories]
    torn = [path for path in [*last, *sorted(data_dir.rglob("*.metadata"))] if rng.random() < 0.3]
    for path in torn:
        content = path.read_bytes()
        with path.open("ab") as file:
            file.write(_partial_write(content, _first_write_size(path, content), rng))
    return len(torn)


def _first_write_size(path: Path, content: bytes) -> int:
    """Return the size of the first write in a file: a frame of the metadata log, or a record batch."""
    if path.suffix == ".metadata":
        return 8 + int.from_bytes(content[:4], "big")
    return 12 + int.from_bytes(content[8:12], "big")


def _partial_write(content: bytes, whole: int, rng: random.Random) -> bytes:
    """Return an incomplete write: the beginning of one like the first in the file, or random bytes."""
    length = rng.randint(1, whole - 1)
    return content[:length] if content and rng.random() < 0.7 else rng.randbytes(length)
