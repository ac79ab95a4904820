"""Limit the peak memory of a block of code."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["MEGABYTE", "memory_under"]

MEGABYTE = 1 << 20


@contextmanager
def memory_under(limit: float) -> Iterator[None]:
    """Fail if the block allocates `limit` bytes or more of Python's memory at any time (`tracemalloc`)."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < limit
