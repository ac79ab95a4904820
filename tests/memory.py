"""How much memory a piece of work takes, at the moment at which it takes most."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["MEGABYTE", "memory_under"]

MEGABYTE = 1 << 20


@contextmanager
def memory_under(limit: float) -> Iterator[None]:
    """Fails if the block takes `limit` bytes of Python's memory or more at any moment."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < limit
