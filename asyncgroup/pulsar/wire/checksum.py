"""CRC-32C of messages and of lists of topics: with the CPU's instruction if the optional package `crc32c` is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.wire.primitives import Buffer

__all__ = ["crc32c"]


def _fastest() -> Callable[[Buffer], int]:
    try:
        from crc32c import crc32c as instruction
    except ImportError:
        return _with_tables
    return instruction


def _with_tables(data: Buffer) -> int:
    # importing aiokafka takes longer than all of this room
    from asyncgroup.wire.compiled import crc32c as with_tables

    return with_tables(data)


crc32c: Final = _fastest()
"""Return the CRC-32C of a buffer."""
