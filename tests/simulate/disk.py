"""What a sudden end of all brokers leaves on their disk: all that they have answered, and perhaps half of a write more."""

from __future__ import annotations

import random
from pathlib import Path

__all__ = ["PowerCut", "tear"]


class PowerCut(Exception):
    """Why a cluster ends that is not asked whether it is ready."""


def tear(data_dir: Path, rng: random.Random) -> int:
    """Let some of the files end in a write that was under way; returns how many.

    The order of files is that of their names, so that chance alone decides.
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
    """The length of what was written first: a frame of the metadata's log, or a record batch."""
    if path.suffix == ".metadata":
        return 8 + int.from_bytes(content[:4], "big")
    return 12 + int.from_bytes(content[8:12], "big")


def _partial_write(content: bytes, whole: int, rng: random.Random) -> bytes:
    """The beginning of a write: of one as the first in the file, or of anything, but never all of it."""
    length = rng.randint(1, whole - 1)
    return content[:length] if content and rng.random() < 0.7 else rng.randbytes(length)
