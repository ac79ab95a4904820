"""Validation of a produced batch, and the broker's changes to it, before the append (Kafka's `LogValidator`).

The result, a `ValidBatch`, is what `PartitionLog.append` takes and trusts: the header is parsed once, the CRC computed
once. Records are decoded only if the topic's configs or the batch's header require it; usually the header suffices. A
batch with a correct CRC but undecodable records, which no client sends, may therefore be accepted, and fails at its
readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.log.topic_configs import LogConfig
from asyncgroup.counting import counted
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError, CorruptRecordsError
from asyncgroup.model import Record
from asyncgroup.wire.batch_view import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MIN_RECORD_SIZE,
    BatchView,
    batch_at,
    with_attributes,
)
from asyncgroup.wire.decompression import decompress, decompress_within
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import CODECS, BatchBuilder, read_batch

__all__ = [
    "BatchValidator",
    "InvalidRecords",
    "ProduceRequestError",
    "ProducedBatch",
    "Trial",
    "ValidBatch",
    "check_size",
    "produced_batch",
    "trial_decompression",
]

_ZSTD: Final = CODECS["zstd"]
_MAGIC: Final = 2


_ANY_TIME: Final = 2**63 - 1
_MANY: Final = 10_000
"""Number of records that take some tens of milliseconds to check."""

LARGE_DECOMPRESSED: Final = 1 << 20
"""Decompressed bytes above which work is offloaded: about a millisecond of work, a few milliseconds with gzip."""

LARGE_COMPRESSED: Final = 1 << 16
"""Compressed bytes above which work is offloaded: with many small blocks they take long, however little they hold."""

_NO_TIMESTAMP: Final = -1
_NO_SIZE_LIMIT: Final = 2**31 - 1


ValidBatch = NewType("ValidBatch", BatchView)
"""A batch that may be appended: the result of `BatchValidator.validate`, or written by the broker itself."""


class InvalidRecords(AppendError):
    """The batch has invalid records: `records` are their indexes, each with an error message (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        self.records = records
        super().__init__(code, message)


class ProduceRequestError(AppendError):
    """The batch is refused because of the request's form or its transaction, before the append is attempted."""


class ProducedBatch(NamedTuple):
    """What a Produce request has for one partition."""

    first: BatchView | None
    """The first batch; None if it is not complete."""
    error: AppendError | None
    """Why it is refused, if it is."""

    @property
    def batch(self) -> BatchView:
        """The batch, if its form is right; otherwise raises the error."""
        if self.error is not None:
            raise self.error
        assert self.first is not None
        return self.first


class Trial(NamedTuple):
    """The result of `BatchValidator.trial`."""

    takes_long: bool
    """Whether the batch should be validated on a thread."""
    size: int | None = None
    """The decompressed bytes of the records, if they were decompressed."""


_SHORT: Final = Trial(takes_long=False)
_LONG: Final = Trial(takes_long=True)


def produced_batch(records: Buffer | None, version: int) -> ProducedBatch:
    """Return the one batch in the `records` of a Produce request of this version; only its form is checked.

    As `ProduceRequest.validateRecords`; an incomplete batch after it is cut off.
    """
    first = None
    try:
        first = batch_at(records or b"")
        error = _form_error(first, records, version)
    except CorruptRecordsError as corrupt:
        error = ProduceRequestError(ErrorCode.CORRUPT_MESSAGE, str(corrupt))
    return ProducedBatch(first, error)


def _form_error(batch: BatchView | None, records: Buffer | None, version: int) -> AppendError | None:
    if not records:
        return ProduceRequestError(ErrorCode.INVALID_RECORD, "a produce request must have a record batch")
    if batch is None or batch.magic != _MAGIC:
        return ProduceRequestError(ErrorCode.INVALID_RECORD, "not a complete record batch of magic 2")
    # a second complete batch is refused; the incomplete rest of one is ignored, as by Kafka's iterator
    if batch.size < len(records) and batch_at(records, batch.size) is not None:
        return ProduceRequestError(ErrorCode.INVALID_RECORD, "more than one record batch")
    # as in Kafka: zstd came with this version of Produce (KIP-110)
    if batch.codec == _ZSTD and version < 7:
        reason = "zstd requires version 7 of Produce"
        return ProduceRequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, reason)
    # Kafka checks this at the append, after the transaction, so it is not a ProduceRequestError
    if batch.base_offset:
        reason = f"the base offset of a produced batch must be 0, not {batch.base_offset}"
        return AppendError(ErrorCode.INVALID_RECORD, reason)
    return None


@dataclass(frozen=True, slots=True)
class BatchValidator:
    """Validates the batches of a partition by its configs. It has no other state, so it can be used on a thread."""

    topic: str
    partition: int
    config: LogConfig

    def validate(self, batch: BatchView, now: int, size: int | None = None) -> ValidBatch:
        """Return the batch as it is to be appended at `now` (ms since 1970): the same, unless the topic's configs require a change.

        `size` is that of a `trial`: with it the records are not decompressed only to be checked.
        Raise AppendError: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE (wrong CRC), INVALID_RECORD (a header that producers may not
        write, a record without key in a compacted topic, or undecodable records), RECORD_LIST_TOO_LARGE if the batch is
        larger than a segment, INVALID_TIMESTAMP.
        """
        config = self.config
        # first: nothing in the batch counts before its size and its CRC are right
        _check_header(batch, config.max_message_bytes)
        if self._is_plain(batch, now):
            return ValidBatch(batch)
        # a compressed batch may claim any number of records; of others `_check_header` knows the bytes
        if batch.codec:
            _check_record_count(batch, _decompressed_size(batch) if size is None else size)
        self._check_records(batch, now)
        changed = batch
        # a batch that has the topic's codec already keeps its bytes, with any level
        if config.compression is not None and batch.codec != CODECS[config.compression]:
            changed = self._recompressed(batch, config.compression)
        # after the compression, which makes new attributes; where the topic has CreateTime, a set flag is cleared
        if config.log_append_time or batch.timestamp_type:
            flag, time = (LOG_APPEND_TIME, now) if config.log_append_time else (0, None)
            changed = with_attributes(changed, changed.attributes & ~LOG_APPEND_TIME | flag, time)
        # a batch is never split, so it has to fit in a segment
        if changed.size > config.segment_bytes:
            raise AppendError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {changed.size} bytes; segments have at most {config.segment_bytes}",
            )
        # the new form may be larger than the one that `_check_header` has measured
        if changed is not batch:
            check_size(changed, config.max_message_bytes)
        return ValidBatch(changed)

    def trial(self, batch: BatchView, now: int) -> Trial:
        """Find out whether `validate` would block the loop for long, by decompressing the batch up to `LARGE_DECOMPRESSED`.

        It would for batches that decompress to more, for malformed ones, and for those with many records that are checked one by
        one.
        """
        # neither looks at the records: the size is refused at once, or the header suffices
        if batch.size > self.config.max_message_bytes or self._is_plain(batch, now):
            return _SHORT
        one_by_one = self._looks_at_records(batch, now) or self.config.compression is not None
        if batch.record_count > _MANY and one_by_one:
            return _LONG
        return trial_decompression(batch.codec, batch.payload)

    def _is_plain(self, batch: BatchView, now: int) -> bool:
        """Return whether the header is all that needs to be checked."""
        config = self.config
        return not (
            config.log_append_time
            or config.compression is not None
            or self._looks_at_records(batch, now)
            or batch.timestamp_type
            or batch.codec
            or batch.size > config.segment_bytes
        )

    def _looks_at_records(self, batch: BatchView, now: int) -> bool:
        config = self.config
        return (
            config.compact
            or config.timestamp_before_max_ms != _ANY_TIME
            or batch.max_timestamp > now + config.timestamp_after_max_ms
        )

    def _check_records(self, batch: BatchView, now: int) -> None:
        config = self.config
        keyless, untimely = [], []
        # the flag belongs to the batch, so all its records are reported, without a look at them
        if config.log_append_time and batch.timestamp_type:
            reason = "producers may not set the timestamp type LogAppendTime"
            untimely = [(index, reason) for index in range(batch.record_count)]
        elif self._looks_at_records(batch, now):
            oldest, newest = now - config.timestamp_before_max_ms, now + config.timestamp_after_max_ms
            for index, record in enumerate(self._decoded(batch)):
                if config.compact and record.key is None:
                    keyless.append(
                        (index, f"{self.topic}-{self.partition} is compacted, so a key is required")
                    )
                elif not config.log_append_time and not (
                    record.timestamp == _NO_TIMESTAMP or oldest <= record.timestamp <= newest
                ):
                    reason = f"timestamp {record.timestamp} is not within [{oldest}, {newest}]"
                    untimely.append((index, reason))
        # the partition has one error code: as in Kafka that of the timestamps, with records without a key in its list
        if untimely:
            records = sorted(keyless + untimely)
            raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, "records have invalid timestamps", records)
        if keyless:
            raise InvalidRecords(
                ErrorCode.INVALID_RECORD,
                f"{counted(len(keyless), 'record has', 'records have')} no key",
                keyless,
            )

    def _decoded(self, batch: BatchView) -> Iterator[Record]:
        try:
            yield from read_batch(self.topic, self.partition, batch)
        except AsyncGroupError as error:
            raise AppendError(ErrorCode.INVALID_RECORD, str(error)) from error

    def _recompressed(self, batch: BatchView, codec: str) -> BatchView:
        """Return the batch recompressed with the topic's codec (`compression.type`)."""
        builder = BatchBuilder(
            codec,
            _NO_SIZE_LIMIT,
            transactional=batch.is_transactional,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
        for record in self._decoded(batch):
            if not builder.append(record.timestamp, record.key, record.value, record.headers):
                raise AppendError(
                    ErrorCode.INVALID_RECORD, "a batch must not mix records with and without timestamps"
                )
        return BatchView(builder.build())


def _check_header(batch: BatchView, max_batch_bytes: int) -> None:
    check_size(batch, max_batch_bytes)
    if not batch.crc_is_valid():
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")
    # before anything relies on the count: 70 bytes may claim two billion records
    if batch.codec == 0:
        _check_record_count(batch, batch.size - HEADER_SIZE)
    if batch.record_count <= 0 or batch.record_count != batch.last_offset_delta + 1:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"{batch.record_count} records, but the last offset delta is {batch.last_offset_delta}",
        )
    if batch.is_control:
        raise AppendError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    # repetitions and gaps are found by the sequence number only
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise AppendError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")


def check_size(batch: BatchView, max_batch_bytes: int) -> None:
    """Raise AppendError(MESSAGE_TOO_LARGE) if a batch is larger than `max.message.bytes` of its topic."""
    if batch.size > max_batch_bytes:
        raise AppendError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {batch.size} bytes; at most {max_batch_bytes} are allowed",
        )


def _check_record_count(batch: BatchView, size: int) -> None:
    """Raise AppendError(INVALID_RECORD) if a batch claims more records than fit into `size` decompressed bytes."""
    if batch.record_count > size // MIN_RECORD_SIZE:
        raise AppendError(ErrorCode.INVALID_RECORD, f"{batch.record_count} records in {size} bytes")


def _decompressed_size(batch: BatchView) -> int:
    """Return the decompressed bytes. Raise AppendError for malformed ones; Kafka returns UNKNOWN_SERVER_ERROR too."""
    try:
        return len(decompress(batch.codec, batch.payload))
    except AsyncGroupError as error:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error


def trial_decompression(codec: int, data: Buffer) -> Trial:
    """Decompress `data` up to `LARGE_DECOMPRESSED`, unless its size alone shows that this takes long."""
    if codec == CODECS["none"]:
        return _SHORT
    if len(data) > LARGE_COMPRESSED:
        return _LONG
    try:
        records = decompress_within(codec, data, LARGE_DECOMPRESSED)
    except AsyncGroupError:
        return _LONG
    return _LONG if records is None else Trial(takes_long=False, size=len(records))
