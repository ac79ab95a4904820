"""Producers of partitions, with their open transactions, and markers that abort these: at the partitions' leaders (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.fan_out import request_apart, request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByLeader, RequestRoute, Target, ToNode, ToOneTarget
from asyncgroup.errors import BrokerError
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.topic_partition import by_topic
from asyncgroup.wire import messages as m

__all__ = ["AbortMarker", "ActiveProducer", "describe_producers", "write_abort_marker"]

PARTITIONS_PER_REQUEST: Final = 500
"""Partitions that one request asks for, as in Kafka's TransactionsCommand: each may have many producers."""

ActiveProducer: TypeAlias = "m.DescribeProducersResponse.ProducerState"


class AbortMarker(NamedTuple):
    """The end of a transaction in one partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """At least that of the producer's last marker: the partition refuses an older coordinator."""


async def describe_producers(
    cluster: ClusterClient,
    partitions: Iterable[TopicPartition],
    *,
    node: int | None = None,
    retry: RetryLoop | None = None,
) -> Results[TopicPartition, list[ActiveProducer]]:
    """Return the producers that each partition knows, at its leader or at this `node`, a replica. Raises ClosedError.

    The caller tracks the topics.
    """

    async def ask(
        target: Target, asked: list[TopicPartition]
    ) -> Results[TopicPartition, list[ActiveProducer]]:
        results: Results[TopicPartition, list[ActiveProducer]] = Results()
        for begin in range(0, len(asked), PARTITIONS_PER_REQUEST):
            found = await _describe(target, asked[begin : begin + PARTITIONS_PER_REQUEST])
            results.errors |= found.errors
            results.values |= found.values
        return results

    route: RequestRoute[TopicPartition] = (
        ByLeader(cluster, "producers of") if node is None else ToOneTarget(ToNode(cluster, node))
    )
    return await request_apart(partitions, route, ask, api="DescribeProducers", retry=retry)


async def _describe(
    target: Target, asked: list[TopicPartition]
) -> Results[TopicPartition, list[ActiveProducer]]:
    topic_request = m.DescribeProducersRequest.TopicRequest
    request = m.DescribeProducersRequest([topic_request(*each) for each in by_topic(asked).items()])
    response = await target.request(m.DescribeProducersRequest, lambda _: request)
    results: Results[TopicPartition, list[ActiveProducer]] = Results()
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                results.errors[tp] = BrokerError(part.error_code, f"producers of {tp}", part.error_message)
            else:
                results.values[tp] = part.active_producers
    return results


async def write_abort_marker(
    cluster: ClusterClient, tp: TopicPartition, marker: AbortMarker, *, retry: RetryLoop | None = None
) -> Results[TopicPartition, None]:
    """Abort the producer's transaction in this partition only, as an administrator (`AbortTransactionHandler` in Java).

    INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED if the partition knows a later epoch. A repeated marker changes
    nothing. The caller tracks the topic. Raises ClosedError.
    """
    request = m.WriteTxnMarkersRequest

    async def ask(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, None]:
        (key,) = asked
        topic = request.WritableTxnMarkerTopic(key.topic, [key.partition])
        end = request.WritableTxnMarker(
            marker.producer_id, marker.producer_epoch, False, [topic], marker.coordinator_epoch
        )
        response = await target.request(request, lambda _: request([end]))
        results: Results[TopicPartition, None] = Results()
        codes = [
            part.error_code
            for written in response.markers
            for topics in written.topics
            for part in topics.partitions
            if (topics.name, part.partition_index) == key
        ]
        if any(codes):
            what = f"aborting the transaction of producer id {marker.producer_id} in {key}"
            results.errors[key] = BrokerError(max(codes), what)
        elif codes:
            results.values[key] = None
        return results

    route = ByLeader(cluster, "aborting a transaction in")
    return await request_each([tp], route, ask, api="WriteTxnMarkers", retry=retry)
