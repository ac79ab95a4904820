"""Shapes of the topic that `benchmarks.consume` reads: records per batch, compression, headers."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["SHAPES", "Shape"]


class Shape(NamedTuple):
    """How the records of a topic were written."""

    batch_records: int | None = None
    """Records per batch; None: as many as fit into 64 KiB."""
    codec: str = "none"
    headers: int = 0
    """Headers per record, eight bytes each."""

    def __str__(self) -> str:
        words = ["full batches" if self.batch_records is None else f"{self.batch_records} per batch"]
        words += [self.codec] if self.codec != "none" else []
        words += [f"{self.headers} headers"] if self.headers else []
        return ", ".join(words)


SHAPES: Final = {
    "full": Shape(),
    "one": Shape(1),
    "three": Shape(3),
    "one-lz4": Shape(1, "lz4"),
    "three-lz4": Shape(3, "lz4"),
    "one-zstd": Shape(1, "zstd"),
    "headers": Shape(headers=5),
}
"""Shapes by name. Producers with little traffic write batches of one or a few records."""
