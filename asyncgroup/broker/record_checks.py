"""What the records of a produced batch must be like, and what the broker changes in them (Kafka's `LogValidator`).

A batch is looked into only where its topic's settings or its own header ask for it: usually the header says enough.
So a batch with a fitting CRC and nonsense for records, which no client sends, is found out by its readers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from asyncgroup.broker.batch_checks import RECORDS_AT, check_count, checked_header
from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.topic_configs import LogConfig
from asyncgroup.broker.topics import Partition
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
"""Where the low byte of a batch's attributes stands."""

_CODEC_MASK: Final = 0x07
_APPEND_TIME: Final = 0x08
_ANY_TIME: Final = 2**63 - 1
_MANY: Final = 10_000
"""Records that are looked at in some tens of milliseconds."""

_NO_TIMESTAMP: Final = -1
_MAGIC: Final = 2


class InvalidRecords(AppendError):
    """Some records of a batch spoil it: `records` are their indexes, each with what is wrong (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        self.records = records
        super().__init__(code, message)


def checked_records(partition: Partition, data: Buffer, now: int) -> Buffer:
    """The batch as it goes into the log at `now` (ms since 1970), the same bytes if nothing has to change.

    Raises AppendError: RECORD_LIST_TOO_LARGE for one that fits into no segment, INVALID_TIMESTAMP and INVALID_RECORD
    (no key on a compacted topic, or not readable); what `checked_header` says, if it has to be looked into.
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
            ErrorCode.RECORD_LIST_TOO_LARGE, f"{len(data)} bytes don't fit into {config.segment_bytes}"
        )
    return data


def checking_takes_long(partition: Partition, data: Buffer, now: int) -> bool:
    """Return whether `checked_records` would hold the loop for long: for a batch that holds much, or many records that
    have to be looked at one by one. It reads nothing but its arguments, so it may run on a thread.
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
    return should_offload(header.codec, memoryview(data)[RECORDS_AT:])


def _looks_at_records(config: LogConfig, header: BatchHeader, now: int) -> bool:
    by_time = config.timestamp_before_max_ms != _ANY_TIME or (
        header.max_timestamp > now + config.timestamp_after_max_ms
    )
    return config.compact or by_time


def _is_plain(config: LogConfig, data: Buffer, now: int) -> bool:
    """Whether nothing has to be looked at but what the log looks at itself."""
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
    """Whether the records can be decompressed; Kafka has no better word than UNKNOWN_SERVER_ERROR if they can't."""
    try:
        size = len(decompress(header.codec, memoryview(data)[RECORDS_AT:]))
    except AsyncGroupError as error:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    check_count(header, size)


def _check_records(partition: Partition, header: BatchHeader, data: Buffer, now: int) -> None:
    config = partition.config
    keyless, untimely = [], []
    if config.log_append_time and header.timestamp_type:
        reason = "a producer may not set LogAppendTime"
        untimely = [(index, reason) for index in range(header.record_count)]
    elif _looks_at_records(config, header, now):
        oldest, newest = now - config.timestamp_before_max_ms, now + config.timestamp_after_max_ms
        for index, record in enumerate(_decoded(partition, header, data)):
            if config.compact and record.key is None:
                keyless.append((index, f"{partition.topic}-{partition.index} is compacted: a key is needed"))
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
    """The same batch with the codec that the topic wants (`compression.type`)."""
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
            raise AppendError(ErrorCode.INVALID_RECORD, "records with and without timestamps")
    return builder.build()


def _stamped(data: Buffer, append_time: int | None) -> bytes:
    """The batch with the broker's time, or marked as having the producer's."""
    batch = bytearray(data)
    if append_time is None:
        batch[_ATTRIBUTES_AT] &= ~_APPEND_TIME
    else:
        batch[_ATTRIBUTES_AT] |= _APPEND_TIME
        _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, append_time)
    update_crc(batch)
    return bytes(batch)
