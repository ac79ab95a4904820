"""Checks of a produced batch before the append: its form, its transaction, the in-sync replicas.

Kafka's `ProduceRequest`, `AddPartitionsToTxnManager` and `Partition.appendRecordsToLeader`.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.metadata.topics import Partition
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import BatchView, batch_at, is_transactional
from asyncgroup.wire.records import CODECS

__all__ = ["ProduceRequestError", "check_transaction", "has_min_isr", "has_transactions", "single_batch"]

_ZSTD: Final = CODECS["zstd"]
_MAGIC: Final = 2

_KNOWS_ABORTABLE: Final = 11
"""The first version with TRANSACTION_ABORTABLE (KIP-890)."""

_ADDS_PARTITIONS: Final = 12
"""The first version in which Produce adds partitions to the transaction (KIP-890)."""


class ProduceRequestError(AppendError):
    """The batch is refused because of the request's form or its transaction, before the append is attempted."""


def has_transactions(request: m.ProduceRequest) -> bool:
    """Return whether any complete batch in the request is flagged as transactional."""
    batches = (produced.records for topic in request.topic_data for produced in topic.partition_data)
    return any(batch and is_transactional(batch) for batch in batches)


def single_batch(context: RequestContext, records: bytes | memoryview | None) -> BatchView:
    """Return the one batch in `records`, checked as in `ProduceRequest.validateRecords`.

    An incomplete batch after it is cut off. Raise AppendError.
    """
    if not records:
        raise ProduceRequestError(ErrorCode.INVALID_RECORD, "a produce request must have a record batch")
    try:
        batch = batch_at(records)
        if batch is None or batch.magic != _MAGIC:
            raise ProduceRequestError(ErrorCode.INVALID_RECORD, "not a complete record batch of magic 2")
        if batch.size < len(records) and batch_at(records, batch.size) is not None:
            raise ProduceRequestError(ErrorCode.INVALID_RECORD, "more than one record batch")
    except CorruptRecordsError as error:
        raise ProduceRequestError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if batch.codec == _ZSTD and context.api_version < 7:
        raise ProduceRequestError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd requires version 7 of Produce"
        )
    if batch.base_offset:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"the base offset of a produced batch must be 0, not {batch.base_offset}",
        )
    return batch


def check_transaction(
    node: Node,
    context: RequestContext,
    transactional_id: str | None,
    partition: Partition,
    batch: BatchView,
) -> None:
    """Verify that a transactional batch belongs to an open transaction (KIP-890). Raise AppendError.

    It is refused outside a transaction or from a fenced producer. The transaction coordinator is not asked if the
    producer's transaction is already open in this partition.
    """
    if not batch.is_transactional:
        return
    producer = ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)
    producers = partition.log.producers
    if producers.is_open(*producer):
        return
    add_partition = context.api_version >= _ADDS_PARTITIONS
    try:
        producers.record_verification(batch, adds_partitions=add_partition)
    except AppendError as refused:
        raise ProduceRequestError(refused.code, str(refused)) from refused
    error = node.transactions.add_or_verify(
        transactional_id,
        producer,
        TopicPartition(partition.topic, partition.index),
        add_partition=add_partition,
        supports_abortable_error=context.api_version >= _KNOWS_ABORTABLE,
    )
    if error:
        raise ProduceRequestError(error, f"producer {producer.id} of {transactional_id!r}: {error.name}")


def has_min_isr(node: Node, partition: Partition) -> bool:
    """Return whether at least `min.insync.replicas` replicas are alive (all, if the partition has fewer)."""
    needed = min(partition.config.min_insync_replicas, len(partition.replicas))
    return needed <= 1 or len(node.controller.alive.intersection(partition.replicas)) >= needed
