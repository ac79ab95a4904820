"""CRC-32C by the processor's own instruction, where the package `crc32c` is installed (extra `spark`).

aiokafka's compiled code computes it by tables, ten times slower: that took most of the time of reading records of a
kilobyte. Every record batch is checked, so it is worth an optional package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.wire.primitives import Buffer

__all__ = ["fast_crc32c"]


def _find() -> Callable[[Buffer], int] | None:
    try:
        from crc32c import crc32c
    except ImportError:
        return None
    return crc32c


fast_crc32c: Final = _find()
"""The function, or None where aiokafka's must do."""
