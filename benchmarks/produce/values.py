"""Values with the redundancy of ordinary text: words of a vocabulary, each with a random number."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

__all__ = ["COUNT", "write_values"]

COUNT: Final = 2000
"""Different values; enough that a compressor does not find one of them again in the same batch of 128 KiB."""


def write_values(directory: Path, size: int) -> Path:
    """Write `COUNT` values of `size` bytes into a file, the same ones in each run, and return its path."""
    rng = random.Random(size)
    words = [f"{rng.getrandbits(32):08x}" for _ in range(256)]
    tokens = iter(lambda: f"{rng.choice(words)}:{rng.randrange(1000):03d},", "")
    length = size * COUNT
    text = "".join(next(tokens) for _ in range(length // 13 + 1))
    path = directory / f"values-{size}"
    path.write_bytes(text.encode()[:length])
    return path
