"""Validation of a produced batch's header before the append (Kafka's `LogValidator`, without the checks of records)."""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import AppendError
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, crc_is_valid, read_batch_header

__all__ = ["RECORDS_OFFSET", "check_record_count", "checked_header"]

RECORDS_OFFSET: Final = 61
"""Size in bytes of a batch's header; its records begin there (`DefaultRecordBatch.RECORDS_OFFSET`)."""

_SMALLEST_RECORD: Final = 7
"""Size in bytes of a record without key, value and headers: a length and six one-byte fields."""


def checked_header(data: Buffer, max_batch_bytes: int) -> BatchHeader:
    """Return the header of `data`, which must be exactly one valid batch of at most `max_batch_bytes`.

    Raise AppendError: CORRUPT_MESSAGE (malformed, or wrong CRC), INVALID_RECORD (not exactly one batch of magic 2, or
    a batch that producers may not write), MESSAGE_TOO_LARGE.
    """
    try:
        header = read_batch_header(data)
    except CorruptRecordsError as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header is None:
        raise AppendError(ErrorCode.INVALID_RECORD, "a produce request must have a complete record batch")
    if header.magic != 2:
        raise AppendError(ErrorCode.INVALID_RECORD, f"magic {header.magic} is not accepted, only 2")
    if header.size != len(data):
        raise AppendError(ErrorCode.INVALID_RECORD, "a produce request must have exactly one record batch")
    if header.size > max_batch_bytes:
        raise AppendError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size} bytes; at most {max_batch_bytes} are allowed",
        )
    if not crc_is_valid(data):
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")
    if header.codec == 0:
        check_record_count(header, header.size - RECORDS_OFFSET)
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records, but the last offset delta is {header.last_offset_delta}",
        )
    if header.is_control:
        raise AppendError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise AppendError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")
    return header


def check_record_count(header: BatchHeader, size: int) -> None:
    """Raise AppendError(INVALID_RECORD) if `header` claims more records than fit into `size` decompressed bytes."""
    if header.record_count > size // _SMALLEST_RECORD:
        raise AppendError(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {size} bytes")
