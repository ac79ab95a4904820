"""Produce (0), versions 3-13: append record batches.

Versions from 0 on are advertised, see `version_ranges`; from version 13 on topics are named by id.

All replicas share one log, so appended records are replicated at once. acks=all waits, up to the request's
timeout, only if a test has stopped the followers (`EmbeddedCluster.hold_followers`). A transactional batch
must belong to a transaction of its coordinator; from version 12 on it adds its partition to the transaction
(KIP-890). `log.batch_validator` validates the batch.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from asyncgroup.broker.errors import AppendError, CloseConnection, PartitionError
from asyncgroup.broker.handlers.produce_checks import (
    ProduceRequestError,
    check_transaction,
    has_min_isr,
    has_transactions,
    single_batch,
)
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.log.batch_validator import BatchValidator, InvalidRecords, ValidBatch
from asyncgroup.broker.metadata.topics import INTERNAL_TOPICS, Partition
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.off_loop import run_off_loop

VERSIONS = (3, 13)

_ALL: Final = -1
"""The value of acks=all."""

_ADMIN_CLIENT: Final = "__admin_client"
"""The client id that is allowed to write to internal topics (`AdminUtils.ADMIN_CLIENT_ID`)."""

_WITHOUT_LOG_START_OFFSET: Final = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
)
"""Errors that Kafka sends without the log start offset."""

_WITH_MESSAGE: Final = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS}
)
"""The error codes of `ProduceRequestError` that Kafka sends with a message."""

_NO_HINT: Final = m.ProduceResponse.LeaderIdAndEpoch()

Topic = m.ProduceRequest.TopicProduceData
Produced = m.ProduceRequest.PartitionProduceData
PartitionResponse = m.ProduceResponse.PartitionProduceResponse


def handle(
    node: Node, context: RequestContext, request: m.ProduceRequest
) -> m.ProduceResponse | asyncio.Future[object] | None:
    """Append the batches. With acks=0 there is no response, and an error closes the connection."""
    if request.acks not in (_ALL, 0, 1):
        return error_response(context, request, ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is None and has_transactions(request):
        return error_response(context, request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    produce = _Produce(node, context, request)
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


class _Large(NamedTuple):
    """A batch that takes long to validate."""

    produced: Produced
    validator: BatchValidator
    batch: BatchView


class _Checked(NamedTuple):
    """The validated batch, or the error, of a large batch, as long as the partition has an equal validator."""

    validator: BatchValidator
    outcome: ValidBatch | AppendError


class _Produce:
    """A Produce request in progress."""

    def __init__(self, node: Node, context: RequestContext, request: m.ProduceRequest) -> None:
        self._node = node
        self._context = context
        self._request = request
        self.response = m.ProduceResponse()
        self.written: list[_Written] = []
        # Both for requests with large batches only, by `id()` of the partition's part of the request.
        self._checked: dict[int, _Checked] = {}
        self._records: dict[int, bytes | memoryview | None] = {}

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

    def large_batches(self) -> list[_Large]:
        """Return the batches that take long to validate, except those that will be rejected anyway."""
        found = []
        now = self._node.clock()
        for topic in self._request.topic_data:
            for produced in topic.partition_data:
                try:
                    partition = _find(self._node, self._context, topic, produced.index)
                    batch = single_batch(self._context, produced.records)
                    self._check_writable(partition)
                except (AppendError, PartitionError):
                    continue
                if partition.validator.takes_long(batch, now):
                    found.append(_Large(produced, partition.validator, batch))
        return found

    async def handle_large(self, large: list[_Large]) -> object:
        """Validate large batches in a thread, then handle the request.

        All other checks come after that, as leaders and settings may have changed in the meantime.
        """
        # `History` removes the records from the request when its connection ends: keep them.
        self._records = {id(p): p.records for topic in self._request.topic_data for p in topic.partition_data}
        for produced, validator, batch in large:
            try:
                valid = await run_off_loop(validator.validate, batch, self._node.clock())
            except AppendError as error:
                self._checked[id(produced)] = _Checked(validator, error)
            else:
                self._checked[id(produced)] = _Checked(validator, valid)
        answer = self.handle()
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _validate(self, produced: Produced, partition: Partition, batch: BatchView) -> ValidBatch:
        """Return the batch to append. Raise AppendError if it is invalid."""
        checked = self._checked.get(id(produced))
        if checked is None or checked.validator != partition.validator:
            return partition.validator.validate(batch, self._node.clock())
        if isinstance(checked.outcome, AppendError):
            raise checked.outcome
        return checked.outcome

    def append(self) -> None:
        """Append the valid batches, fill in the response and wake parked fetches."""
        self.response.responses = [
            m.ProduceResponse.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [self._append(topic, produced) for produced in topic.partition_data],
            )
            for topic in self._request.topic_data
            if topic.partition_data
        ]
        if self._context.api_version >= 10:
            _add_endpoints(self._node, self.response)
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
            if partition.deleted:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.leader != self._node.id:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.log.high_watermark < end_offset:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
            elif not has_min_isr(self._node, partition):
                result.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return self.response

    def _lost_leadership(self, partition: Partition) -> bool:
        return partition.deleted or partition.leader != self._node.id

    def _append(self, topic: Topic, produced: Produced) -> PartitionResponse:
        node, context = self._node, self._context
        partition: Partition | None = None
        try:
            partition = _find(node, context, topic, produced.index)
            batch = single_batch(context, self._records.get(id(produced), produced.records))
            self._check_writable(partition)
            check_transaction(node, context, self._request.transactional_id, partition, batch)
            if self._request.acks == _ALL:
                _check_replicas(node, partition)
            valid = self._validate(produced, partition, batch)
            appended = partition.log.append(valid, partition.leader_epoch)
        except PartitionError as error:
            leader = error.leader if context.api_version >= 10 else None
            return _refused(produced.index, error.code, leader)
        except AppendError as error:
            return _not_appended(produced.index, error, partition)
        result = PartitionResponse(
            produced.index,
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

    def _check_writable(self, partition: Partition) -> None:
        """Raise PartitionError if the topic is internal, or this node is not the leader."""
        if partition.topic in INTERNAL_TOPICS and self._context.client_id != _ADMIN_CLIENT:
            raise PartitionError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is an internal topic")
        self._node.check_leader(partition)


def _check_replicas(node: Node, partition: Partition) -> None:
    if not has_min_isr(node, partition):
        raise AppendError(ErrorCode.NOT_ENOUGH_REPLICAS, "fewer in-sync replicas than min.insync.replicas")


def _find(node: Node, context: RequestContext, topic: Topic, index: int) -> Partition:
    if context.api_version < 13:
        return node.partition(context, node.controller.topics.get(topic.name), index)
    known = node.controller.topics_by_id.get(topic.topic_id)
    if known is None:
        raise PartitionError(ErrorCode.UNKNOWN_TOPIC_ID)
    return node.partition(context, known, index)


def _not_appended(index: int, error: AppendError, partition: Partition | None) -> PartitionResponse:
    result = _refused(index, error.code)
    if isinstance(error, ProduceRequestError):
        result.error_message = str(error) if error.code in _WITH_MESSAGE else None
    elif partition is not None and error.code not in _WITHOUT_LOG_START_OFFSET:
        result.log_start_offset = partition.log.start_offset
    if isinstance(error, InvalidRecords):
        result.error_message = str(error)
        result.record_errors = [
            m.ProduceResponse.BatchIndexAndErrorMessage(number, text) for number, text in error.records
        ]
    return result


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
    """Add the addresses of the current leaders (KIP-951)."""
    leaders = {p.current_leader.leader_id for topic in response.responses for p in topic.partition_responses}
    response.node_endpoints = [
        m.ProduceResponse.NodeEndpoint(peer.id, peer.advertised_host, peer.port, peer.rack)
        for peer in node.live_peers()
        if peer.id in leaders
    ]


register("Produce", VERSIONS, handle, error_response)
