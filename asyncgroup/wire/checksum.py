"""CRC-32C by the CPU's instruction, if the optional package `crc32c` is installed (extra `spark`).

aiokafka's compiled code uses lookup tables and is ten times slower, which is most of the time of reading records of one
kilobyte. The CRC of every record batch is checked.
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
"""The function of package `crc32c`, or None if it is not installed: then aiokafka's is used."""
