"""Whether a produced batch may be appended at all, before any look at the log (Kafka's `ProduceRequest`,
`AddPartitionsToTxnManager` and `Partition.appendRecordsToLeader`).
"""

from __future__ import annotations

import struct
from typing import Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.node import Node
from asyncgroup.broker.topics import Partition
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import CODECS, LOG_OVERHEAD, read_batch_header

__all__ = ["Unsuited", "check_transaction", "enough_replicas", "has_transactions", "whole_batch"]

_ZSTD: Final = CODECS["zstd"]
_CODEC_MASK: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_HEADER_SIZE: Final = 61
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_MAGIC: Final = 2
_ATTRIBUTES_LOW: Final = 22
"""Where the low byte of a batch's attributes stands."""

_KNOWS_ABORTABLE: Final = 11
_ADDS_PARTITIONS: Final = 12
"""The versions that know TRANSACTION_ABORTABLE, and that add partitions to transactions (KIP-890)."""


class Unsuited(AppendError):
    """Refused for the request's form or its transaction, before any look at the log."""


def has_transactions(request: m.ProduceRequest) -> bool:
    """Whether some whole batch says that it belongs to a transaction."""
    batches = (produced.records for topic in request.topic_data for produced in topic.partition_data)
    return any(batch and _is_transactional(batch) for batch in batches)


def _is_transactional(batch: bytes | memoryview) -> bool:
    if len(batch) < _HEADER_SIZE or not batch[_ATTRIBUTES_LOW] & _TRANSACTIONAL:
        return False
    (length,) = _LENGTH.unpack_from(batch, _LENGTH_AT)
    return bool(length + LOG_OVERHEAD <= len(batch))


def whole_batch(context: RequestContext, records: bytes | memoryview | None) -> bytes | memoryview:
    """The batch, checked for its form and for what depends on the version (`ProduceRequest.validateRecords`).

    What is left over behind it, and is no whole batch, is cut off.
    """
    if not records:
        raise Unsuited(ErrorCode.INVALID_RECORD, "a produce request must have a record batch")
    if not _is_one_batch(records):
        records = _first_of(records)
    (base_offset,) = _BASE_OFFSET.unpack_from(records)
    attributes = records[_ATTRIBUTES_LOW]
    if attributes & _CODEC_MASK == _ZSTD and context.api_version < 7:
        raise Unsuited(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7")
    if base_offset:
        raise AppendError(ErrorCode.INVALID_RECORD, "the base offset of a produced batch is 0")
    return records


def _is_one_batch(records: bytes | memoryview) -> bool:
    if len(records) < _HEADER_SIZE or records[_MAGIC_AT] != _MAGIC:
        return False
    (length,) = _LENGTH.unpack_from(records, _LENGTH_AT)
    return bool(length == len(records) - LOG_OVERHEAD)


def _first_of(records: bytes | memoryview) -> bytes | memoryview:
    """The one batch at the front; raises Unsuited if there is none, or another behind it."""
    try:
        first = read_batch_header(records)
        if first is None or first.magic != _MAGIC:
            raise Unsuited(ErrorCode.INVALID_RECORD, "not a whole record batch of magic 2")
        if first.size < len(records) and read_batch_header(records, first.size) is not None:
            raise Unsuited(ErrorCode.INVALID_RECORD, "more than one record batch")
    except CorruptRecordsError as error:
        raise Unsuited(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return memoryview(records)[: first.size]


def check_transaction(
    node: Node,
    context: RequestContext,
    transactional_id: str | None,
    partition: Partition,
    records: bytes | memoryview,
) -> None:
    """Raises AppendError for a transactional batch outside of any transaction, or of a producer that was fenced (KIP-890).

    A partition in which the producer's transaction is open needs no question to its coordinator.
    """
    if not records[_ATTRIBUTES_LOW] & _TRANSACTIONAL:
        return
    header = read_batch_header(records)
    if header is None:
        return  # the log says what is wrong with it
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    producers = partition.log.producers
    if producers.is_open(*producer):
        return
    add_partition = context.api_version >= _ADDS_PARTITIONS
    try:
        producers.verify(header, adds=add_partition)
    except AppendError as refused:
        raise Unsuited(refused.code, str(refused)) from refused
    error = node.transactions.add_or_verify(
        transactional_id,
        producer,
        TopicPartition(partition.topic, partition.index),
        add_partition=add_partition,
        supports_abortable_error=context.api_version >= _KNOWS_ABORTABLE,
    )
    if error:
        raise Unsuited(error, f"producer {producer.id} of {transactional_id!r}: {error.name}")


def enough_replicas(node: Node, partition: Partition) -> bool:
    """Whether as many replicas are alive as `min.insync.replicas` wants, or all if there are fewer."""
    needed = min(partition.config.min_insync_replicas, len(partition.replicas))
    return needed <= 1 or len(node.controller.alive.intersection(partition.replicas)) >= needed
