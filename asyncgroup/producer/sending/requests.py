"""Build Produce requests from batches, split responses by partition, and map their error codes to actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.batch import ProducerBatch
from asyncgroup.wire import messages as m

__all__ = [
    "PRODUCE_ACTIONS",
    "EncodedBatch",
    "PartitionProduceResponse",
    "ProduceAction",
    "build_produce_request",
    "max_version",
    "node_endpoints",
    "produce_action",
    "responses_by_partition",
    "topic_ids",
]

PartitionProduceResponse: TypeAlias = "m.ProduceResponse.PartitionProduceResponse"

BY_TOPIC_ID: Final = 13
"""The first version that identifies topics by id instead of by name (KIP-516)."""


class EncodedBatch(NamedTuple):
    """A batch of a request, and its encoded bytes."""

    batch: ProducerBatch
    data: bytes | memoryview


def topic_ids(encoded_batches: Sequence[EncodedBatch], topic_id: Callable[[str], UUID]) -> dict[str, UUID]:
    """Return the id of each topic in a request; `topic_id` returns the zero UUID where it is not known."""
    return {name: topic_id(name) for name in {encoded.batch.tp.topic for encoded in encoded_batches}}


def max_version(ids: Mapping[str, UUID]) -> int | None:
    """Return the highest version that can be used with these topics; None if there is no limit."""
    return BY_TOPIC_ID - 1 if m.NO_UUID in ids.values() else None


def build_produce_request(
    encoded_batches: Sequence[EncodedBatch],
    ids: Mapping[str, UUID],
    acks: int,
    timeout: float,
    transactional_id: str | None = None,
) -> m.ProduceRequest:
    """Build a request with these batches; the broker waits for its replicas for at most `timeout` seconds."""
    topics: dict[str, m.ProduceRequest.TopicProduceData] = {}
    for batch, data in encoded_batches:
        name, partition = batch.tp
        if name not in topics:
            topics[name] = m.ProduceRequest.TopicProduceData(name=name, topic_id=ids[name])
        topics[name].partition_data.append(m.ProduceRequest.PartitionProduceData(partition, data))
    return m.ProduceRequest(transactional_id, acks, int(timeout * 1000), list(topics.values()))


def responses_by_partition(
    response: m.ProduceResponse, ids: Mapping[str, UUID]
) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the response of each partition, for versions with topic names and with topic ids."""
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        TopicPartition(
            topic.name or names.get(topic.topic_id, ""), partition_response.index
        ): partition_response
        for topic in response.responses
        for partition_response in topic.partition_responses
    }


def node_endpoints(response: m.ProduceResponse) -> list[BrokerInfo]:
    """Return the addresses of the new leaders in the response (KIP-951)."""
    return [BrokerInfo(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]


class ProduceAction(Enum):
    """What to do with a batch after the response."""

    DONE = "the records are in the log"
    RETRY = "send it again after a backoff"
    REFRESH = "refresh the metadata to find the leader, and send it again"
    RESTART = "its sequence number does not follow the last one that the broker knows: send it again, numbered from 0 on"
    SPLIT = "send it again in two parts; fail it if it has one record"
    FAIL = "fail it: sending it again would get the same response"


PRODUCE_ACTIONS: Final[Mapping[int, ProduceAction]] = {
    ErrorCode.NONE: ProduceAction.DONE,
    # an earlier attempt of the same batch is in the log (only returned to idempotent producers)
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ProduceAction.DONE,
    # Kafka's InvalidMetadataException and its subclasses: the broker is not the leader, or the metadata of client and
    # broker differ
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProduceAction.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: ProduceAction.REFRESH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ProduceAction.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: ProduceAction.REFRESH,
    ErrorCode.NETWORK_EXCEPTION: ProduceAction.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: ProduceAction.REFRESH,
    ErrorCode.LISTENER_NOT_FOUND: ProduceAction.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: ProduceAction.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ProduceAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: ProduceAction.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: ProduceAction.REFRESH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ProduceAction.RESTART,
    ErrorCode.UNKNOWN_PRODUCER_ID: ProduceAction.RESTART,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProduceAction.RESTART,
    ErrorCode.MESSAGE_TOO_LARGE: ProduceAction.SPLIT,
}
"""Codes that are not listed are RETRY if Kafka defines them as retriable, else FAIL."""


def produce_action(code: int) -> ProduceAction:
    """Return the action for the error code of a partition in a Produce response."""
    action = PRODUCE_ACTIONS.get(code)
    if action is not None:
        return action
    return ProduceAction.RETRY if is_retriable(code) else ProduceAction.FAIL
