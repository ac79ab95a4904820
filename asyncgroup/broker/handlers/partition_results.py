"""Parts that responses of several APIs have in common: results by topic, and the metadata of a partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from asyncgroup.broker.metadata.topics import NO_LEADER, Partition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["partition_metadata", "results_by_topic"]

PartitionResult = TypeVar("PartitionResult")
TopicResult = TypeVar("TopicResult")


class _Partition(Protocol):
    partition_index: int


class _Topic(Protocol):
    name: str

    @property
    def partitions(self) -> Sequence[_Partition]: ...


def results_by_topic(
    topics: Iterable[_Topic],
    errors: Mapping[TopicPartition, ErrorCode],
    topic_result: Callable[[str, list[PartitionResult]], TopicResult],
    partition_result: Callable[[int, int], PartitionResult],
) -> list[TopicResult]:
    """Return the results for the topics and partitions of a request, in its order, with the code of `errors` for each."""
    return [
        topic_result(
            topic.name,
            [
                partition_result(p.partition_index, errors[TopicPartition(topic.name, p.partition_index)])
                for p in topic.partitions
            ],
        )
        for topic in topics
    ]


def partition_metadata(
    partition: Partition, alive: Collection[int], make: Callable[..., PartitionResult]
) -> PartitionResult:
    """Return a partition's leader and replicas as the message `make`; replicas on nodes that are `alive` are in sync."""
    leaderless = partition.leader == NO_LEADER
    return make(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leaderless else ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=[r for r in partition.replicas if r in alive],
        offline_replicas=[r for r in partition.replicas if r not in alive],
    )
