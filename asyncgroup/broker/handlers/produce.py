"""Produce (0), versions 3-13: append record batches.

Versions from 0 on are advertised, see `version_ranges`; from version 13 on topics are named by id.

All replicas share one log, so appended records are replicated at once. acks=all waits, up to the request's
timeout, only if a test has stopped the followers (`EmbeddedCluster.hold_followers`). A transactional batch
must belong to a transaction of its coordinator; from version 12 on it adds its partition to the transaction
(KIP-890). `log.batch_validator` validates the batch.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError, CloseConnection, PartitionError
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.log.batch_validator import (
    BatchValidator,
    InvalidRecords,
    ProduceRequestError,
    ValidBatch,
    produced_batch,
)
from asyncgroup.broker.metadata.topics import INTERNAL_TOPICS, Partition
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.off_loop import run_off_loop
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import BatchView

VERSIONS = (3, 13)

_ALL: Final = -1
"""The value of acks=all."""

_ADMIN_CLIENT: Final = "__admin_client"
"""The client id that is allowed to write to internal topics (`AdminUtils.ADMIN_CLIENT_ID`)."""

_KNOWS_ABORTABLE: Final = 11
"""The first version with TRANSACTION_ABORTABLE (KIP-890)."""

_ADDS_PARTITIONS: Final = 12
"""The first version in which Produce adds partitions to the transaction (KIP-890)."""

_WITHOUT_LOG_START_OFFSET: Final = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
)
"""Errors that Kafka sends without the log start offset."""

_WITH_MESSAGE: Final = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS}
)
"""The error codes of `ProduceRequestError` that Kafka sends with a message."""

_NO_HINT: Final = m.ProduceResponse.LeaderIdAndEpoch()
_NO_LEADERS: Final = frozenset({_NO_HINT.leader_id})

Topic = m.ProduceRequest.TopicProduceData
Produced = m.ProduceRequest.PartitionProduceData
PartitionResponse = m.ProduceResponse.PartitionProduceResponse


def handle(
    node: Node, context: RequestContext, request: m.ProduceRequest
) -> m.ProduceResponse | asyncio.Future[object] | None:
    """Append the batches. With acks=0 there is no response, and an error closes the connection."""
    if request.acks not in (_ALL, 0, 1):
        return error_response(context, request, ErrorCode.INVALID_REQUIRED_ACKS)
    produce = _Produce(node, context, request)
    if request.transactional_id is None and produce.has_transactions():
        return error_response(context, request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    large = produce.large_batches()
    # As in Kafka, the request is processed even if the client disconnects, but not if the node stops.
    return asyncio.shield(node.spawn(produce.handle_large(large))) if large else produce.handle()


def error_response(_context: RequestContext, request: m.ProduceRequest, code: int) -> m.ProduceResponse:
    """Return the error for every partition."""
    response = m.ProduceResponse(
        responses=[
            m.ProduceResponse.TopicProduceResponse(
                topic.name, topic.topic_id, [_refused(p.index, ErrorCode(code)) for p in topic.partition_data]
            )
            for topic in request.topic_data
        ]
    )
    if request.acks == 0:
        _close_on_error(response)
    return response


class _Written(NamedTuple):
    """An appended batch, with its part of the response."""

    partition: Partition
    end_offset: int
    result: PartitionResponse


class _Validated(NamedTuple):
    """The validated batch, or the error, of a large batch, as long as the partition has an equal validator."""

    validator: BatchValidator
    outcome: ValidBatch | AppendError


class _Part:
    """A partition's part of the request: its batch, and the partition that it goes to."""

    __slots__ = ("batch", "index", "partition", "produced", "refused", "size", "topic", "validated")

    batch: BatchView
    """Set unless the part is refused."""

    def __init__(self, topic: Topic, produced: Produced, version: int) -> None:
        self.topic = topic
        self.index = produced.index
        # kept here, as the history removes the records from the request when its connection ends
        self.produced = produced_batch(produced.records, version)
        self.partition: Partition | None = None
        self.refused: PartitionResponse | None = None
        """The error, if the partition is not found or may not be written, or the batch is malformed."""
        self.size: int | None = None
        """The decompressed bytes of the batch, for its validation; None if it was not decompressed before."""
        self.validated: _Validated | None = None


class _Produce:
    """A Produce request in progress."""

    def __init__(self, node: Node, context: RequestContext, request: m.ProduceRequest) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._parts = [
            [_Part(topic, one, context.api_version) for one in topic.partition_data]
            for topic in request.topic_data
        ]
        self._look_up()
        self.response = m.ProduceResponse()
        self.written: list[_Written] = []

    def has_transactions(self) -> bool:
        """Return whether any complete batch in the request is flagged as transactional."""
        firsts = [part.produced.first for parts in self._parts for part in parts]
        return any(first is not None and first.is_transactional for first in firsts)

    def _look_up(self) -> None:
        """Find the partitions and parse the batches."""
        for parts in self._parts:
            for part in parts:
                part.refused = None
                try:
                    # before the batch: an unknown partition is reported also for a malformed one
                    part.partition = _find(self._node, self._context, part.topic, part.index)
                    part.batch = part.produced.batch
                    _check_writable(self._node, self._context, part.partition)
                except (AppendError, PartitionError) as error:
                    part.refused = self._not_appended(part, error)

    def handle(self) -> m.ProduceResponse | asyncio.Future[object] | None:
        """Append the batches; return the response, or a future of it if followers must replicate first."""
        node, request = self._node, self._request
        self.append()
        if request.acks == 0:
            _close_on_error(self.response)
            return None
        if request.acks == _ALL and not self.is_replicated():
            keys = [TopicPartition(one.partition.topic, one.partition.index) for one in self.written]
            return node.purgatory.park(keys, request.timeout_ms / 1000, self.is_replicated, self.finish)
        return self.response

    def large_batches(self) -> list[tuple[_Part, BatchValidator]]:
        """Return the parts whose batch takes long to validate, except those that will be rejected anyway."""
        now = self._node.clock()
        large = []
        for part in chain.from_iterable(self._parts):
            if part.refused is None and part.partition:
                validator = part.partition.validator
                # the size is kept, so that the validation does not decompress a second time
                takes_long, part.size = validator.trial(part.batch, now)
                if takes_long:
                    large.append((part, validator))
        return large

    async def handle_large(self, large: list[tuple[_Part, BatchValidator]]) -> object:
        """Validate large batches in a thread, then handle the request.

        All other checks are made again after that, as leaders and settings may have changed in the meantime.
        """
        for part, validator in large:
            try:
                valid = await run_off_loop(validator.validate, part.batch, self._node.clock())
            except AppendError as error:
                part.validated = _Validated(validator, error)
            else:
                part.validated = _Validated(validator, valid)
        self._look_up()
        answer = self.handle()
        return await answer if isinstance(answer, asyncio.Future) else answer

    def append(self) -> None:
        """Append the valid batches, fill in the response and wake parked fetches."""
        self.response.responses = [
            m.ProduceResponse.TopicProduceResponse(
                topic.name, topic.topic_id, [self._append(part) for part in parts]
            )
            for topic, parts in zip(self._request.topic_data, self._parts, strict=True)
            if parts
        ]
        if self._context.api_version >= 10:
            _add_endpoints(self._node, self.response)
        # after the response is complete: a parked fetch may read the records at once
        for one in self.written:
            self._node.complete_delayed_operations(one.partition)

    def is_replicated(self) -> bool:
        """Whether all batches are replicated, or their partition was deleted or has another leader."""
        return all(
            one.partition.log.high_watermark >= one.end_offset or self._lost_leadership(one.partition)
            for one in self.written
        )

    def finish(self) -> m.ProduceResponse:
        """Return the response after the wait (Kafka's `DelayedProduce`).

        Batches that are not replicated get REQUEST_TIMED_OUT, batches with fewer in-sync replicas than
        `min.insync.replicas` get NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        """
        for partition, end_offset, result in self.written:
            # in the order of Kafka's checks: the first one that applies is the result
            if partition.deleted:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.leader != self._node.id:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.log.high_watermark < end_offset:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
            elif not _has_min_isr(self._node, partition):
                result.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return self.response

    def _lost_leadership(self, partition: Partition) -> bool:
        return partition.deleted or partition.leader != self._node.id

    def _append(self, part: _Part) -> PartitionResponse:
        node, partition = self._node, part.partition
        if part.refused is not None:
            return part.refused
        assert partition is not None
        try:
            # before the replicas are counted: a fenced producer gets its error in any case
            _check_transaction(node, self._context, self._request.transactional_id, partition, part.batch)
            if self._request.acks == _ALL and not _has_min_isr(node, partition):
                reason = "fewer in-sync replicas than min.insync.replicas"
                raise AppendError(ErrorCode.NOT_ENOUGH_REPLICAS, reason)
            appended = partition.log.append(self._validate(part, partition), partition.leader_epoch)
        except (AppendError, PartitionError) as error:
            return self._not_appended(part, error)
        result = PartitionResponse(
            part.index,
            base_offset=appended.base_offset,
            # For a duplicate it is the time of the first batch, as in Kafka.
            log_append_time_ms=appended.timestamp
            if appended.duplicate or partition.config.log_append_time
            else -1,
            log_start_offset=partition.log.start_offset,
            current_leader=_NO_HINT,
        )
        # A duplicate waits for the followers as well: the client may not have received the first response.
        self.written.append(_Written(partition, appended.last_offset + 1, result))
        return result

    def _validate(self, part: _Part, partition: Partition) -> ValidBatch:
        """Return the batch to append. Raise AppendError if it is invalid."""
        validated = part.validated
        # the settings of the topic may have changed while a thread has validated the batch
        if validated is None or validated.validator != partition.validator:
            return partition.validator.validate(part.batch, self._node.clock(), part.size)
        if isinstance(validated.outcome, AppendError):
            raise validated.outcome
        return validated.outcome

    def _not_appended(self, part: _Part, error: AppendError | PartitionError) -> PartitionResponse:
        if isinstance(error, PartitionError):
            leader = error.leader if self._context.api_version >= 10 else None
            return _refused(part.index, error.code, leader)
        result = _refused(part.index, error.code)
        if isinstance(error, ProduceRequestError):
            result.error_message = str(error) if error.code in _WITH_MESSAGE else None
        elif part.partition is not None and error.code not in _WITHOUT_LOG_START_OFFSET:
            result.log_start_offset = part.partition.log.start_offset
        if isinstance(error, InvalidRecords):
            result.error_message = str(error)
            result.record_errors = [
                m.ProduceResponse.BatchIndexAndErrorMessage(number, text) for number, text in error.records
            ]
        return result


def _check_writable(node: Node, context: RequestContext, partition: Partition) -> None:
    """Raise PartitionError if the topic is internal, or this node is not the leader."""
    if partition.topic in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT:
        raise PartitionError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is an internal topic")
    node.check_leader(partition)


def _check_transaction(
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
    # verified by an earlier batch: the coordinator is asked once for each partition of a transaction
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


def _has_min_isr(node: Node, partition: Partition) -> bool:
    """Return whether at least `min.insync.replicas` replicas are alive (all, if the partition has fewer)."""
    # a topic with fewer replicas could never be written otherwise
    needed = min(partition.config.min_insync_replicas, len(partition.replicas))
    return needed <= 1 or len(node.controller.alive.intersection(partition.replicas)) >= needed


def _find(node: Node, context: RequestContext, topic: Topic, index: int) -> Partition:
    if context.api_version < 13:
        return node.partition(context, node.controller.topics.get(topic.name), index)
    known = node.controller.topics_by_id.get(topic.topic_id)
    if known is None:
        raise PartitionError(ErrorCode.UNKNOWN_TOPIC_ID)
    return node.partition(context, known, index)


def _refused(index: int, code: ErrorCode, leader: tuple[int, int] | None = None) -> PartitionResponse:
    hint = _NO_HINT if leader is None else m.ProduceResponse.LeaderIdAndEpoch(*leader)
    return PartitionResponse(index, code, base_offset=-1, error_message=None, current_leader=hint)


def _close_on_error(response: m.ProduceResponse) -> None:
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                code = ErrorCode(partition.error_code)
                raise CloseConnection(
                    f"produce with acks=0 failed: {topic.name}-{partition.index} {code.name}"
                )


def _add_endpoints(node: Node, response: m.ProduceResponse) -> None:
    """Add the addresses of the current leaders that partitions name, as this node does not lead them (KIP-951)."""
    leaders = {p.current_leader.leader_id for topic in response.responses for p in topic.partition_responses}
    if leaders <= _NO_LEADERS:
        return
    response.node_endpoints = [
        m.ProduceResponse.NodeEndpoint(peer.id, peer.advertised_host, peer.port, peer.rack)
        for peer in node.live_peers()
        if peer.id in leaders
    ]


register("Produce", VERSIONS, handle, error_response)
