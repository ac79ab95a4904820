"""What is looked at before a produced batch goes into a log (Kafka's `LogValidator`, the parts without records)."""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import AppendError
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, crc_is_valid, read_batch_header

__all__ = ["RECORDS_AT", "check_count", "checked_header"]

RECORDS_AT: Final = 61
"""Bytes of a batch in front of its records."""

_SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers: a length and six numbers."""


def checked_header(data: Buffer, max_batch_bytes: int) -> BatchHeader:
    """The header of exactly one sound batch.

    Raises AppendError: CORRUPT_MESSAGE (form or CRC), INVALID_RECORD (not exactly one batch of magic 2, or what no
    producer may write), MESSAGE_TOO_LARGE.
    """
    try:
        header = read_batch_header(data)
    except CorruptRecordsError as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header is None:
        raise AppendError(ErrorCode.INVALID_RECORD, "a produce request must have a whole record batch")
    if header.magic != 2:
        raise AppendError(ErrorCode.INVALID_RECORD, f"magic {header.magic} is not accepted, only 2")
    if header.size != len(data):
        raise AppendError(ErrorCode.INVALID_RECORD, "a produce request must have exactly one record batch")
    if header.size > max_batch_bytes:
        raise AppendError(ErrorCode.MESSAGE_TOO_LARGE, f"{header.size} bytes are more than {max_batch_bytes}")
    if not crc_is_valid(data):
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not fit its bytes")
    if header.codec == 0:
        check_count(header, header.size - RECORDS_AT)
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise AppendError(ErrorCode.INVALID_RECORD, f"{header.record_count} records do not fit the offsets")
    if header.is_control:
        raise AppendError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise AppendError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")
    return header


def check_count(header: BatchHeader, size: int) -> None:
    """Raises AppendError(INVALID_RECORD) if the records take `size` bytes, decompressed, and cannot be that many."""
    if header.record_count > size // _SMALLEST_RECORD:
        raise AppendError(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {size} bytes")
