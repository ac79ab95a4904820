"""Compiled code for record batches: aiokafka's reader and builder, and CRC-32C.

This is the only module that imports aiokafka; a contract test lists every symbol used here. Importing aiokafka takes longer
than importing all of asyncgroup, so `records.py` imports this module on first use, and clients do when they are entered
(`loading.py`).

aiokafka's CRC-32C uses lookup tables and takes about ten times as long as the CPU's instruction, which is used if the optional
package `crc32c` is installed (extra `spark`). The CRC of every record batch is checked: with tables that is most of the
time of reading records of one kilobyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokafka.errors import UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from asyncgroup.wire.primitives import Buffer

__all__ = [
    "HAS_CRC_INSTRUCTION",
    "DefaultRecordBatch",
    "DefaultRecordBatchBuilder",
    "MemoryRecords",
    "UnsupportedCodecError",
    "calc_crc32c",
    "crc32c",
]


def _fastest() -> Callable[[Buffer], int]:
    try:
        from crc32c import crc32c as instruction
    except ImportError:
        table: Callable[[Buffer], int] = calc_crc32c
        return table
    return instruction


crc32c: Final = _fastest()
"""Return the CRC-32C of a buffer."""

HAS_CRC_INSTRUCTION: Final = crc32c is not calc_crc32c
"""Whether it uses the CPU's instruction."""
