"""The memory of records: fixed-size buffers that go back to the system as soon as no read uses them.

A large buffer is an anonymous mapping, not part of the heap. The heap of glibc keeps freed buffers of some megabytes for
good as soon as a small object lies above them: 1.5 GB for 40 MB of records that were left after retention. Pages of a
mapping that were never written take no memory either.
"""

from __future__ import annotations

import mmap
from typing import Final

__all__ = ["LARGEST_CHUNK", "MemoryChunk"]

LARGEST_CHUNK: Final = 1 << 22
"""Bytes of a chunk, unless a single batch is larger."""

_MAPPED_FROM: Final = 1 << 16
"""Smaller chunks are in the heap: mappings consist of whole pages, and their number is limited."""


class MemoryChunk:
    """A fixed-size buffer."""

    __slots__ = ("data", "used", "view")

    def __init__(self, capacity: int) -> None:
        self.data = _buffer(capacity)
        self.view = memoryview(self.data).toreadonly()
        self.used = 0

    def read(self, position: int, size: int) -> memoryview:
        """Return a view, without a copy; the memory is freed with the last one."""
        return self.view[position : position + size]


def _buffer(capacity: int) -> bytearray | mmap.mmap:
    if capacity >= _MAPPED_FROM:
        try:
            if hasattr(mmap, "MAP_PRIVATE"):
                return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return mmap.mmap(-1, capacity)  # Windows
        except OSError:
            pass  # the limit of mappings per process (Linux: 65,530)
    return bytearray(capacity)
