"""Produce requests and responses: batches in, one answer a partition out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.cluster.metadata import BrokerInfo, ClusterView
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batch import ProducerBatch
from asyncgroup.wire import messages as m

__all__ = [
    "EncodedBatch",
    "PartitionProduceResponse",
    "build_produce_request",
    "max_version",
    "node_endpoints",
    "responses_by_partition",
    "topic_ids",
]

PartitionProduceResponse: TypeAlias = m.ProduceResponse.PartitionProduceResponse

BY_TOPIC_ID: Final = 13
"""From this version on topics go by their ids instead of their names (KIP-516)."""


class EncodedBatch(NamedTuple):
    """A batch of a request, with its bytes."""

    batch: ProducerBatch
    data: bytes


def topic_ids(encoded_batches: Sequence[EncodedBatch], view: ClusterView) -> dict[str, UUID]:
    """The ids of the topics in a request; the nil UUID for one whose id is not known."""
    names = {encoded.batch.tp.topic for encoded in encoded_batches}
    return {name: view.topics[name].topic_id if name in view.topics else m.NO_UUID for name in names}


def max_version(ids: Mapping[str, UUID]) -> int | None:
    """The newest version that can say these topics; None for any."""
    return BY_TOPIC_ID - 1 if m.NO_UUID in ids.values() else None


def build_produce_request(
    encoded_batches: Sequence[EncodedBatch], ids: Mapping[str, UUID], acks: int, timeout: float
) -> m.ProduceRequest:
    """A request with these batches; the broker gives up waiting for its replicas after `timeout` seconds."""
    topics: dict[str, m.ProduceRequest.TopicProduceData] = {}
    for batch, data in encoded_batches:
        name, partition = batch.tp
        if name not in topics:
            topics[name] = m.ProduceRequest.TopicProduceData(name=name, topic_id=ids[name])
        topics[name].partition_data.append(m.ProduceRequest.PartitionProduceData(partition, data))
    return m.ProduceRequest(acks=acks, timeout_ms=int(timeout * 1000), topic_data=list(topics.values()))


def responses_by_partition(
    response: m.ProduceResponse, ids: Mapping[str, UUID]
) -> dict[TopicPartition, PartitionProduceResponse]:
    """The answers by partition, whether the broker names topics by name or by id."""
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        TopicPartition(
            topic.name or names.get(topic.topic_id, ""), partition_response.index
        ): partition_response
        for topic in response.responses
        for partition_response in topic.partition_responses
    }


def node_endpoints(response: m.ProduceResponse) -> list[BrokerInfo]:
    """The addresses of the leaders that the response names (KIP-951)."""
    return [BrokerInfo(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
