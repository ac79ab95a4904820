"""Build and send Produce requests, split responses by partition, and map their error codes to actions.

A request is sent at once over an open connection, otherwise in order as soon as there is one. Idempotent producers number their
batches, so no request may overtake an earlier one to the same node, and neither may its response: all of them are passed on in the
same way, in the turn of the event loop that received them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.cluster.network_client import NetworkClient
from asyncgroup.config import ProducerConfig
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import ErrorCode, TransportError, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.batch import ProducerBatch
from asyncgroup.producer.transactions.state import TransactionManager
from asyncgroup.wire import messages as m

__all__ = [
    "PRODUCE_ACTIONS",
    "PRODUCE_LANE",
    "EncodedBatch",
    "InFlightRequests",
    "PartitionProduceResponse",
    "PendingRequest",
    "ProduceAction",
    "RequestOutcome",
    "RequestQueue",
    "build_produce_request",
    "node_endpoints",
    "pending_request",
    "produce_action",
    "responses_by_partition",
]

PartitionProduceResponse: TypeAlias = "m.ProduceResponse.PartitionProduceResponse"

PRODUCE_LANE: Final = "produce"
"""The purpose of the connections that carry Produce requests."""

ZSTD: Final = 7
"""The first version with batches compressed by zstd (KIP-110)."""

ADDS_PARTITIONS: Final = 12
"""The first version that adds partitions to the transaction (KIP-890)."""

BY_TOPIC_ID: Final = 13
"""The first version that identifies topics by id instead of by name (KIP-516)."""


class EncodedBatch(NamedTuple):
    """A batch of a request, and its encoded bytes."""

    batch: ProducerBatch
    data: bytes | memoryview


class PendingRequest(NamedTuple):
    """A Produce request that has no response yet."""

    node: int
    batches: list[EncodedBatch]
    ids: dict[str, UUID]
    """The ids of its topics."""
    highest: int | None
    """The highest version that it may have; None if there is no limit."""
    transactional_id: str | None = None
    adds_partitions: bool = False
    """Whether it adds its partitions to the transaction (KIP-890)."""


def pending_request(
    node: int,
    batches: list[EncodedBatch],
    topic_id: Callable[[str], UUID],
    transaction: TransactionManager | None,
) -> PendingRequest:
    """Return a request with these batches; `topic_id` returns the zero UUID where the id of a topic is not known."""
    ids = {name: topic_id(name) for name in {encoded.batch.tp.topic for encoded in batches}}
    highest = BY_TOPIC_ID - 1 if m.NO_UUID in ids.values() else None
    if transaction is None:
        return PendingRequest(node, batches, ids, highest)
    is_v2 = transaction.is_v2
    highest = highest if is_v2 else ADDS_PARTITIONS - 1
    return PendingRequest(node, batches, ids, highest, transaction.transactional_id, is_v2)


def build_produce_request(
    request: PendingRequest, version: int, acks: int, config: ProducerConfig
) -> m.ProduceRequest:
    """Build the message of a request; the broker waits for its replicas for at most `request_timeout`.

    Raises UnsupportedVersionError if the node's version lacks what the producer needs.
    """
    if request.adds_partitions and version < ADDS_PARTITIONS:
        raise UnsupportedVersionError(
            f"transaction.version=2 is finalized, but node {request.node} has Produce up to version {version} only"
        )
    if version < ZSTD and config.compression_type == "zstd":
        # with acks=0 the refusal of such a broker would not even be seen
        raise UnsupportedVersionError(
            f"compression_type='zstd' needs Kafka 2.1, but node {request.node} has Produce up to version {version} only"
        )
    topics: dict[str, m.ProduceRequest.TopicProduceData] = {}
    for batch, data in request.batches:
        name, partition = batch.tp
        if name not in topics:
            topics[name] = m.ProduceRequest.TopicProduceData(name=name, topic_id=request.ids[name])
        topics[name].partition_data.append(m.ProduceRequest.PartitionProduceData(partition, data))
    timeout_ms = int(config.request_timeout * 1000)
    return m.ProduceRequest(request.transactional_id, acks, timeout_ms, list(topics.values()))


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


class RequestOutcome(Protocol):
    """What happened to a request; one of the methods is called for each."""

    def on_response(
        self, request: PendingRequest, response: m.ProduceResponse | None, error: Exception | None
    ) -> None:
        """The response was received, or the request has failed with `error`. Called by a connection: it must not raise."""

    def on_oneway_sent(self, request: PendingRequest) -> None:
        """It was sent, and there will be no response (acks=0)."""

    def on_failure(self, request: PendingRequest, error: Exception) -> None:
        """It was not sent; with acks=0 it may have been sent."""


class RequestQueue:
    """Sends Produce requests. `build(request, version)` makes the message, `spawn` runs coroutine functions."""

    def __init__(
        self,
        network: NetworkClient,
        outcome: RequestOutcome,
        build: Callable[[PendingRequest, int], m.ProduceRequest],
        spawn: Callable[..., None],
        *,
        is_oneway: bool,
    ) -> None:
        self._network = network
        self._outcome = outcome
        self._build = build
        self._spawn = spawn
        self._is_oneway = is_oneway
        self._unsent: dict[int, deque[PendingRequest]] = {}
        """The requests to send, by node; a task sends those of a node."""

    def __repr__(self) -> str:
        return f"<RequestQueue {sum(map(len, self._unsent.values()))} requests to send>"

    def send(self, request: PendingRequest) -> None:
        """Send a request: now if possible, otherwise by a task that waits for the connection."""
        node = request.node
        if node in self._unsent:
            self._unsent[node].append(request)
            return
        try:
            is_sent = self._try_submit(request)
        except Exception as error:  # noqa: BLE001  a bug must not leave the records waiting
            self._outcome.on_failure(request, error)
            return
        if not is_sent:
            self._unsent[node] = deque([request])
            self._spawn(self._submit_unsent, node, name=f"produce to node {node}")

    def is_unsent(self, batch: ProducerBatch) -> bool:
        """Return whether the request with a batch in flight was not written yet: it is certainly not in the log."""
        if self._is_oneway:
            return False  # it is removed when the transport's buffer has room again
        return any(
            encoded.batch is batch
            for each in self._unsent.values()
            for request in each
            for encoded in request.batches
        )

    def _try_submit(self, request: PendingRequest) -> bool:
        """Send a request now; False if that is not possible."""
        return not self._is_oneway and self._network.try_submit(
            request.node,
            m.ProduceRequest,
            partial(self._build, request),
            partial(self._outcome.on_response, request),
            lane=PRODUCE_LANE,
            highest=request.highest,
        )

    async def _submit_unsent(self, node: int) -> None:
        """Send the requests to a node, in order, as soon as that is possible."""
        unsent = self._unsent[node]
        try:
            while unsent:
                error = await self._submit(unsent[0])
                unsent.popleft()
                while unsent and isinstance(error, TransportError):
                    # they have waited for the same connection
                    self._outcome.on_failure(unsent.popleft(), error)
        finally:
            del self._unsent[node]

    async def _submit(self, request: PendingRequest) -> Exception | None:
        """Send a request; return the error if that failed."""
        network, build, highest = self._network, partial(self._build, request), request.highest
        try:
            if self._is_oneway:
                await network.send_oneway(
                    request.node, m.ProduceRequest, build, lane=PRODUCE_LANE, highest=highest
                )
            else:
                on_response = partial(self._outcome.on_response, request)
                await network.submit(
                    request.node, m.ProduceRequest, build, on_response, lane=PRODUCE_LANE, highest=highest
                )
        except Exception as error:  # noqa: BLE001  a bug must not leave the records waiting
            self._outcome.on_failure(request, error)
            return error
        if self._is_oneway:
            self._outcome.on_oneway_sent(request)
        return None


class InFlightRequests:
    """The number of requests in flight by node; `most` is what one connection may have."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[int] = Counter()
        self.busy_nodes: set[int] = set()
        """The nodes that have as many as one connection may have."""
        self.idle = asyncio.Event()
        """Set while none is in flight."""
        self.idle.set()

    def __repr__(self) -> str:
        return f"requests in flight by node {dict(+self._counts)}"

    def add(self, node: int) -> None:
        """A request is to be sent to a node."""
        self._counts[node] += 1
        if self._counts[node] >= self._most:
            self.busy_nodes.add(node)
        self.idle.clear()

    def remove(self, node: int) -> None:
        """A request to a node has its result."""
        self._counts[node] -= 1
        if self._counts[node] < self._most:
            self.busy_nodes.discard(node)
        if not any(self._counts.values()):
            self.idle.set()


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
