"""Produce (0), versions 3-13 (offered from 0, see `handlers/__init__.py`). From version 13 on topics are
named by id.

Every replica shares the one log, so acks=1 and acks=all are answered at once and NOT_ENOUGH_REPLICAS does not
occur. A transactional batch must belong to a transaction that its coordinator knows of, from version 12 on it
makes its partition part of it (KIP-890). Gaps: LogAppendTime and compacted topics' key check are missing.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import AppendError, CloseConnection, PartitionError
from asyncgroup.broker.node import Node
from asyncgroup.broker.topics import Partition
from asyncgroup.broker.transactions.metadata import Producer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import CODECS, read_batch_header

VERSIONS = (3, 13)

_ZSTD: Final = CODECS["zstd"]
_CODEC_MASK: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_HEADER_SIZE: Final = 61
_ATTRIBUTES_LOW: Final = 22
"""Where the low byte of a batch's attributes stands."""

_KNOWS_ABORTABLE: Final = 11
_ADDS_PARTITIONS: Final = 12
"""The versions that know TRANSACTION_ABORTABLE, and that add partitions to transactions (KIP-890)."""

_NO_HINT: Final = m.ProduceResponse.LeaderIdAndEpoch()

Topic = m.ProduceRequest.TopicProduceData
Produced = m.ProduceRequest.PartitionProduceData
PartitionResponse = m.ProduceResponse.PartitionProduceResponse


def handle(node: Node, context: RequestContext, request: m.ProduceRequest) -> m.ProduceResponse | None:
    """Append the batches; with acks=0 nothing is answered, and an error closes the connection."""
    if request.acks not in (-1, 0, 1):
        return refuse(context, request, ErrorCode.INVALID_REQUIRED_ACKS)
    written: list[Partition] = []
    response = m.ProduceResponse(
        responses=[
            m.ProduceResponse.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [
                    _append(node, context, request, (topic, produced), written)
                    for produced in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    for partition in written:
        node.appended(partition)
    if request.acks == 0:
        _close_on_error(response)
        return None
    if context.api_version >= 10:
        _add_endpoints(node, response)
    return response


def refuse(_context: RequestContext, request: m.ProduceRequest, code: int) -> m.ProduceResponse:
    """The error for every partition."""
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


def _append(
    node: Node,
    context: RequestContext,
    request: m.ProduceRequest,
    place: tuple[Topic, Produced],
    written: list[Partition],
) -> PartitionResponse:
    topic, produced = place
    try:
        partition = _find(node, context, topic, produced.index)
        node.check_leads(partition)
        records = _records(context, produced)
        if records[_ATTRIBUTES_LOW] & _TRANSACTIONAL:
            _check_transaction(node, context, request.transactional_id, partition, records)
        appended = partition.log.append(records, partition.leader_epoch)
    except PartitionError as error:
        leader = error.leader if context.api_version >= 10 else None
        return _refused(produced.index, error.code, str(error), leader)
    except AppendError as error:
        return _refused(produced.index, error.code, str(error))
    if not appended.duplicate:
        written.append(partition)
    return PartitionResponse(
        produced.index,
        base_offset=appended.base_offset,
        log_start_offset=partition.log.start_offset,
        current_leader=_NO_HINT,
    )


def _find(node: Node, context: RequestContext, topic: Topic, index: int) -> Partition:
    if context.api_version < 13:
        return node.partition(context, node.controller.topics.get(topic.name), index)
    known = node.controller.topics_by_id.get(topic.topic_id)
    if known is None:
        raise PartitionError(ErrorCode.UNKNOWN_TOPIC_ID)
    return node.partition(context, known, index)


def _records(context: RequestContext, produced: Produced) -> bytes | memoryview:
    """The batch, checked for what depends on the version or on what is not served."""
    records = produced.records
    if records is None or len(records) < _HEADER_SIZE:
        raise AppendError(ErrorCode.INVALID_RECORD, "a produce request must have a whole record batch")
    attributes = records[_ATTRIBUTES_LOW]
    if attributes & _CODEC_MASK == _ZSTD and context.api_version < 7:
        raise AppendError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7")
    return records


def _check_transaction(
    node: Node,
    context: RequestContext,
    transactional_id: str | None,
    partition: Partition,
    records: bytes | memoryview,
) -> None:
    """Raises AppendError for a batch outside of any transaction, or of a producer that was fenced (KIP-890).

    A partition in which the producer's transaction is open needs no question to its coordinator.
    """
    header = read_batch_header(records)
    if header is None:
        return  # the log says what is wrong with it
    producer = Producer(header.producer_id, header.producer_epoch)
    if partition.log.producers.is_open(*producer):
        return
    error = node.transactions.admit(
        transactional_id,
        producer,
        TopicPartition(partition.topic, partition.index),
        adds=context.api_version >= _ADDS_PARTITIONS,
        knows_abortable=context.api_version >= _KNOWS_ABORTABLE,
    )
    if error:
        raise AppendError(error, f"producer {producer.id} of {transactional_id!r}: {error.name}")


def _refused(
    index: int, code: ErrorCode, message: str | None = None, leader: tuple[int, int] | None = None
) -> PartitionResponse:
    hint = _NO_HINT if leader is None else m.ProduceResponse.LeaderIdAndEpoch(*leader)
    return PartitionResponse(index, code, base_offset=-1, error_message=message, current_leader=hint)


def _close_on_error(response: m.ProduceResponse) -> None:
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                code = ErrorCode(partition.error_code)
                raise CloseConnection(
                    f"produce with acks=0 failed: {topic.name}-{partition.index} {code.name}"
                )


def _add_endpoints(node: Node, response: m.ProduceResponse) -> None:
    """Say where the leaders are that were missed (KIP-951)."""
    leaders = {p.current_leader.leader_id for topic in response.responses for p in topic.partition_responses}
    response.node_endpoints = [
        m.ProduceResponse.NodeEndpoint(peer.id, peer.advertised_host, peer.port)
        for peer in node.live_peers()
        if peer.id in leaders
    ]
