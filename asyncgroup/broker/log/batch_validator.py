"""Validation of a produced batch, and the broker's changes to it, before the append (Kafka's `LogValidator`).

The result, a `ValidBatch`, is what `PartitionLog.append` takes and trusts: the header is parsed once, the CRC computed
once. Records are decoded only if the topic's configs or the batch's header require it; usually the header suffices. A
batch with a correct CRC but undecodable records, which no client sends, may therefore be accepted, and fails at its
readers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.log.topic_configs import LogConfig
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError, CorruptRecordsError
from asyncgroup.model import Record
from asyncgroup.wire.decompression import decompress
from asyncgroup.wire.off_loop import should_offload
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import (
    CODECS,
    BatchBuilder,
    BatchHeader,
    crc_is_valid,
    payload,
    read_batch,
    read_batch_header,
    update_crc,
)

__all__ = ["BatchValidator", "InvalidRecords", "ValidBatch", "check_batch"]

_RECORDS_OFFSET: Final = 61
"""Size in bytes of a batch's header; its records begin there (`DefaultRecordBatch.RECORDS_OFFSET`)."""

_SMALLEST_RECORD: Final = 7
"""Size in bytes of a record without key, value and headers: a length and six one-byte fields."""

_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
_ATTRIBUTES_AT: Final = 22
"""Position of the low byte of a batch's attributes."""

_APPEND_TIME: Final = 0x08
_ANY_TIME: Final = 2**63 - 1
_MANY: Final = 10_000
"""Number of records that take some tens of milliseconds to check."""

_NO_TIMESTAMP: Final = -1
_NO_SIZE_LIMIT: Final = 2**31 - 1


class ValidBatch(NamedTuple):
    """A batch that may be appended, with its header. `data` is exactly the batch."""

    data: Buffer
    header: BatchHeader


class InvalidRecords(AppendError):
    """The batch has invalid records: `records` are their indexes, each with an error message (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        self.records = records
        super().__init__(code, message)


def check_batch(data: Buffer, max_batch_bytes: int) -> ValidBatch:
    """Return `data`, which must be exactly one valid batch of at most `max_batch_bytes`; its records are not checked.

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
    _check_header(header, data, max_batch_bytes)
    return ValidBatch(data, header)


@dataclass(frozen=True, slots=True)
class BatchValidator:
    """Validates the batches of a partition by its configs. It has no other state, so it can be used on a thread."""

    topic: str
    partition: int
    config: LogConfig

    def validate(self, data: Buffer, header: BatchHeader, now: int) -> ValidBatch:
        """Return the batch as it is to be appended at `now` (ms since 1970); `header` is the header of `data`.

        The result has the same bytes, unless the topic's configs require a change.

        Raise AppendError: CORRUPT_MESSAGE, INVALID_RECORD and MESSAGE_TOO_LARGE as `check_batch`, RECORD_LIST_TOO_LARGE
        if the batch is larger than a segment, INVALID_TIMESTAMP, INVALID_RECORD (a record without key in a compacted
        topic, or undecodable records).
        """
        config = self.config
        _check_header(header, data, config.max_message_bytes)
        if self._is_plain(header, now):
            return ValidBatch(data, header)
        if header.codec:
            _check_compression(header, data)
        self._check_records(header, data, now)
        batch = data
        if config.compression is not None and header.codec != CODECS[config.compression]:
            batch = self._recompressed(header, data, config.compression)
        if config.log_append_time or header.timestamp_type:
            batch = _stamped(batch, now if config.log_append_time else None)
        if len(batch) > config.segment_bytes:
            raise AppendError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {len(batch)} bytes; segments have at most {config.segment_bytes}",
            )
        if batch is data:
            return ValidBatch(data, header)
        changed = read_batch_header(batch)
        assert changed is not None
        _check_size(changed, config.max_message_bytes)
        return ValidBatch(batch, changed)

    def takes_long(self, data: Buffer, header: BatchHeader, now: int) -> bool:
        """Return whether `validate` would block the loop for long and should run on a thread.

        This is so for batches that decompress to much data, or with many records that are checked one by one.
        """
        if header.size > self.config.max_message_bytes or self._is_plain(header, now):
            return False
        one_by_one = self._looks_at_records(header, now) or self.config.compression is not None
        return (header.record_count > _MANY and one_by_one) or should_offload(header.codec, payload(data))

    def _is_plain(self, header: BatchHeader, now: int) -> bool:
        """Return whether the header is all that needs to be checked."""
        config = self.config
        return not (
            config.log_append_time
            or config.compression is not None
            or self._looks_at_records(header, now)
            or header.timestamp_type
            or header.codec
            or header.size > config.segment_bytes
        )

    def _looks_at_records(self, header: BatchHeader, now: int) -> bool:
        config = self.config
        return (
            config.compact
            or config.timestamp_before_max_ms != _ANY_TIME
            or header.max_timestamp > now + config.timestamp_after_max_ms
        )

    def _check_records(self, header: BatchHeader, data: Buffer, now: int) -> None:
        config = self.config
        keyless, untimely = [], []
        if config.log_append_time and header.timestamp_type:
            reason = "producers may not set the timestamp type LogAppendTime"
            untimely = [(index, reason) for index in range(header.record_count)]
        elif self._looks_at_records(header, now):
            oldest, newest = now - config.timestamp_before_max_ms, now + config.timestamp_after_max_ms
            for index, record in enumerate(self._decoded(header, data)):
                if config.compact and record.key is None:
                    keyless.append(
                        (index, f"{self.topic}-{self.partition} is compacted, so a key is required")
                    )
                elif not config.log_append_time and not (
                    record.timestamp == _NO_TIMESTAMP or oldest <= record.timestamp <= newest
                ):
                    reason = f"timestamp {record.timestamp} is not within [{oldest}, {newest}]"
                    untimely.append((index, reason))
        if untimely:
            records = sorted(keyless + untimely)
            raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, "records have invalid timestamps", records)
        if keyless:
            raise InvalidRecords(ErrorCode.INVALID_RECORD, f"{len(keyless)} records have no key", keyless)

    def _decoded(self, header: BatchHeader, data: Buffer) -> Iterator[Record]:
        try:
            yield from read_batch(self.topic, self.partition, data, header)
        except AsyncGroupError as error:
            raise AppendError(ErrorCode.INVALID_RECORD, str(error)) from error

    def _recompressed(self, header: BatchHeader, data: Buffer, codec: str) -> bytes:
        """Return the batch recompressed with the topic's codec (`compression.type`)."""
        builder = BatchBuilder(
            codec,
            _NO_SIZE_LIMIT,
            transactional=header.is_transactional,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        for record in self._decoded(header, data):
            if not builder.append(record.timestamp, record.key, record.value, record.headers):
                raise AppendError(
                    ErrorCode.INVALID_RECORD, "a batch must not mix records with and without timestamps"
                )
        return builder.build()


def _check_header(header: BatchHeader, data: Buffer, max_batch_bytes: int) -> None:
    _check_size(header, max_batch_bytes)
    if not crc_is_valid(data):
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")
    if header.codec == 0:
        _check_record_count(header, header.size - _RECORDS_OFFSET)
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records, but the last offset delta is {header.last_offset_delta}",
        )
    if header.is_control:
        raise AppendError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise AppendError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")


def _check_size(header: BatchHeader, max_batch_bytes: int) -> None:
    if header.size > max_batch_bytes:
        raise AppendError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size} bytes; at most {max_batch_bytes} are allowed",
        )


def _check_record_count(header: BatchHeader, size: int) -> None:
    """Raise AppendError(INVALID_RECORD) if `header` claims more records than fit into `size` decompressed bytes."""
    if header.record_count > size // _SMALLEST_RECORD:
        raise AppendError(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {size} bytes")


def _check_compression(header: BatchHeader, data: Buffer) -> None:
    """Raise AppendError unless the records can be decompressed; Kafka returns UNKNOWN_SERVER_ERROR if not."""
    try:
        size = len(decompress(header.codec, payload(data)))
    except AsyncGroupError as error:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    _check_record_count(header, size)


def _stamped(data: Buffer, append_time: int | None) -> bytes:
    """Return the batch with the broker's time (LogAppendTime), or for None flagged as CreateTime."""
    batch = bytearray(data)
    if append_time is None:
        batch[_ATTRIBUTES_AT] &= ~_APPEND_TIME
    else:
        batch[_ATTRIBUTES_AT] |= _APPEND_TIME
        _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, append_time)
    update_crc(batch)
    return bytes(batch)
