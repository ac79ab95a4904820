"""Validation of the records of a produced batch, and the broker's changes to them (Kafka's `LogValidator`).

Records are decoded only if the topic's configs or the batch's header require it; usually the header suffices. A
batch with a correct CRC but undecodable records, which no client sends, may therefore be accepted, and fails at its
readers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.log.batch_checks import RECORDS_OFFSET, check_record_count, checked_header
from asyncgroup.broker.log.topic_configs import LogConfig
from asyncgroup.broker.metadata.topics import Partition
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
    read_batch,
    read_batch_header,
    update_crc,
)

__all__ = ["InvalidRecords", "checked_records", "checking_takes_long"]

_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
_ATTRIBUTES_AT: Final = 22
"""Position of the low byte of a batch's attributes."""

_CODEC_MASK: Final = 0x07
_APPEND_TIME: Final = 0x08
_ANY_TIME: Final = 2**63 - 1
_MANY: Final = 10_000
"""Number of records that take some tens of milliseconds to check."""

_NO_TIMESTAMP: Final = -1
_MAGIC: Final = 2


class InvalidRecords(AppendError):
    """The batch has invalid records: `records` are their indexes, each with an error message (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        self.records = records
        super().__init__(code, message)


def checked_records(partition: Partition, data: Buffer, now: int) -> Buffer:
    """Return the batch as it is to be appended at `now` (ms since 1970).

    These are the same bytes, unless the topic's configs require a change.
    Raise AppendError: RECORD_LIST_TOO_LARGE if it is larger than a segment, INVALID_TIMESTAMP, INVALID_RECORD (a record
    without key in a compacted topic, or undecodable records), and the errors of `checked_header` if it is checked here.
    """
    config = partition.config
    if _is_plain(config, data, now):
        return data
    header = checked_header(data, config.max_message_bytes)
    if header.codec:
        _check_compression(header, data)
    _check_records(partition, header, data, now)
    if config.compression is not None and header.codec != CODECS[config.compression]:
        data = _recompressed(partition, header, data, config.compression)
    if config.log_append_time or header.timestamp_type:
        data = _stamped(data, now if config.log_append_time else None)
    if len(data) > config.segment_bytes:
        raise AppendError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {len(data)} bytes; segments have at most {config.segment_bytes}",
        )
    return data


def checking_takes_long(partition: Partition, data: Buffer, now: int) -> bool:
    """Return whether `checked_records` would block the loop for long and should run on a thread.

    This is so for batches that decompress to much data, or with many records that are checked one by one.
    `checked_records` reads only its arguments, so it can run on a thread.
    """
    config = partition.config
    if len(data) > config.max_message_bytes or _is_plain(config, data, now):
        return False
    try:
        header = read_batch_header(data)
    except CorruptRecordsError:
        return False
    if header is None or header.magic != _MAGIC:
        return False
    if header.record_count > _MANY and (
        _looks_at_records(config, header, now) or config.compression is not None
    ):
        return True
    return should_offload(header.codec, memoryview(data)[RECORDS_OFFSET:])


def _looks_at_records(config: LogConfig, header: BatchHeader, now: int) -> bool:
    by_time = config.timestamp_before_max_ms != _ANY_TIME or (
        header.max_timestamp > now + config.timestamp_after_max_ms
    )
    return config.compact or by_time


def _is_plain(config: LogConfig, data: Buffer, now: int) -> bool:
    """Return whether the batch needs no checks beyond those of the append itself."""
    attributes = data[_ATTRIBUTES_AT]
    (newest,) = _MAX_TIMESTAMP.unpack_from(data, _MAX_TIMESTAMP_AT)
    return not (
        config.compact
        or config.log_append_time
        or config.compression is not None
        or config.timestamp_before_max_ms != _ANY_TIME
        or newest > now + config.timestamp_after_max_ms
        or attributes & _APPEND_TIME
        or attributes & _CODEC_MASK
        or len(data) > config.segment_bytes
    )


def _check_compression(header: BatchHeader, data: Buffer) -> None:
    """Raise AppendError unless the records can be decompressed; Kafka returns UNKNOWN_SERVER_ERROR if not."""
    try:
        size = len(decompress(header.codec, memoryview(data)[RECORDS_OFFSET:]))
    except AsyncGroupError as error:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    check_record_count(header, size)


def _check_records(partition: Partition, header: BatchHeader, data: Buffer, now: int) -> None:
    config = partition.config
    keyless, untimely = [], []
    if config.log_append_time and header.timestamp_type:
        reason = "producers may not set the timestamp type LogAppendTime"
        untimely = [(index, reason) for index in range(header.record_count)]
    elif _looks_at_records(config, header, now):
        oldest, newest = now - config.timestamp_before_max_ms, now + config.timestamp_after_max_ms
        for index, record in enumerate(_decoded(partition, header, data)):
            if config.compact and record.key is None:
                keyless.append(
                    (index, f"{partition.topic}-{partition.index} is compacted, so a key is required")
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


def _decoded(partition: Partition, header: BatchHeader, data: Buffer) -> Iterator[Record]:
    try:
        yield from read_batch(partition.topic, partition.index, data, header)
    except AsyncGroupError as error:
        raise AppendError(ErrorCode.INVALID_RECORD, str(error)) from error


def _recompressed(partition: Partition, header: BatchHeader, data: Buffer, codec: str) -> bytes:
    """Return the batch recompressed with the topic's codec (`compression.type`)."""
    builder = BatchBuilder(
        codec,
        2**31 - 1,
        transactional=header.is_transactional,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    for record in _decoded(partition, header, data):
        if not builder.append(record.timestamp, record.key, record.value, record.headers):
            raise AppendError(
                ErrorCode.INVALID_RECORD, "a batch must not mix records with and without timestamps"
            )
    return builder.build()


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
