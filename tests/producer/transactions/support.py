"""Helpers of the tests of transactions against an embedded cluster."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup import CommittedOffset, GroupOffsets, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ErrorCode
from asyncgroup.producer import Producer
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import ControlType, read_batch, read_control_type
from tests.broker.internals import log_of
from tests.producer.support import QUICK, TOPIC

NAME = "orders-1"
INPUT = "input"


@asynccontextmanager
async def cluster_with_topics(
    nodes: int = 3, partitions: int = 3, **options: Any
) -> AsyncIterator[EmbeddedCluster]:
    """Yield an embedded cluster with the topics `orders` and `input`."""
    async with EmbeddedCluster(nodes=nodes, seed=1, **options) as cluster:
        cluster.create_topic(TOPIC, partitions)
        cluster.create_topic(INPUT, partitions)
        yield cluster


def producer_of(cluster: EmbeddedCluster, name: str | None = NAME, **config: Any) -> Producer:
    """Return a transactional producer that is not connected yet."""
    settings = ProducerConfig(transactional_id=name, **{**QUICK, **config})
    return Producer(cluster.bootstrap_servers, settings, rng=random.Random(1))


@asynccontextmanager
async def transacting(
    nodes: int = 3, partitions: int = 3, *, name: str | None = NAME, options: Any = None, **config: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Yield an embedded cluster and a transactional producer connected to it."""
    async with cluster_with_topics(nodes, partitions, **options or {}) as cluster:
        async with producer_of(cluster, name, **config) as producer:
            yield cluster, producer


def committed(
    cluster: EmbeddedCluster, partition: int | None = None, topic: str = TOPIC
) -> list[bytes | None]:
    """Return the values that read_committed delivers, by the markers in the log, up to the end of the log."""
    if partition is None:
        every = range(len(cluster.topic(topic).partitions))
        return [value for index in every for value in committed(cluster, index, topic)]
    values: list[bytes | None] = []
    pending: dict[int, list[bytes | None]] = {}
    log = log_of(cluster, topic, partition)
    for batch in iter_batches(bytes(log.read(0, 1 << 30))):
        if batch.is_control:
            found = pending.pop(batch.producer_id, [])
            if read_control_type(batch) is ControlType.COMMIT:
                values += found
            continue
        contents = [record.value for record in read_batch(topic, partition, batch)]
        if batch.is_transactional:
            pending.setdefault(batch.producer_id, []).extend(contents)
        else:
            values += contents
    return values


def offsets_of(group_id: str = "g", next_offset: int = 5, **member: Any) -> GroupOffsets:
    """Return the offsets of one partition of the input."""
    return GroupOffsets(
        group_id, {TopicPartition(INPUT, 0): CommittedOffset(next_offset, "meta", 3)}, **member
    )


def requests(cluster: EmbeddedCluster, *apis: str) -> list[str]:
    """Return the names of the requests of transactions that the cluster received, in order."""
    wanted = apis or (
        "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "Produce", "EndTxn"
    )  # fmt: skip
    return [exchange.api for exchange in cluster.history if exchange.api in wanted]


AFTER_LOG = [
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
]
"""Codes that a coordinator also sends after it has written the new state to its log (`TransactionStateManager`)."""


def answered(code: ErrorCode) -> Callable[[Any], Any]:
    """Return a change of a response: the request was processed, and is answered with an error code."""

    def change(response: Any) -> Any:
        if hasattr(response, "error_code"):
            response.error_code = code
        for topic in getattr(response, "results_by_topic_v3_and_below", ()):
            for part in topic.results_by_partition:
                part.partition_error_code = code
        return response

    return change
