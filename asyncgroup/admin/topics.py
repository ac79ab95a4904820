"""Topics as an administrator sees them: what they are called, and where their partitions are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.metadata import PartitionInfo, TopicInfo
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode

__all__ = [
    "PartitionDescription",
    "TopicDescription",
    "TopicListing",
    "describe_topics",
    "list_topics",
]


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic in a list."""

    name: str
    """Its name."""
    topic_id: UUID
    """Its id, by which a topic that was recreated is another one; all zeros before Kafka 2.8."""
    is_internal: bool
    """Whether it is one of Kafka's own, such as `__consumer_offsets`."""
    partitions: int
    """The number of its partitions."""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic."""

    partition: int
    """Its number."""
    leader: int | None
    """The node id of its leader; None if it has none."""
    leader_epoch: int | None
    """The epoch of the leader; None if the broker does not say it."""
    replicas: tuple[int, ...]
    """The node ids of its replicas, the preferred leader first."""
    isr: tuple[int, ...]
    """Those that are in sync."""
    offline_replicas: tuple[int, ...]
    """Those that are offline."""

    @property
    def is_under_replicated(self) -> bool:
        """Whether not all replicas are in sync, as `kafka-topics --under-replicated-partitions`."""
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    """Its name."""
    topic_id: UUID
    """See `TopicListing`."""
    is_internal: bool
    """See `TopicListing`."""
    partitions: tuple[PartitionDescription, ...]
    """Its partitions in the order of their numbers."""


async def list_topics(cluster: ClusterClient, *, internal: bool) -> tuple[TopicListing, ...]:
    """Return the topics that the user may describe, sorted by name."""
    found = await cluster.all_topics()
    return tuple(
        TopicListing(name, topic.topic_id, topic.is_internal, len(topic.partitions))
        for name, topic in sorted(found.items())
        if internal or not topic.is_internal
    )


async def describe_topics(cluster: ClusterClient, names: Iterable[str]) -> Results[str, TopicDescription]:
    """Return each topic, or its error: UNKNOWN_TOPIC_OR_PARTITION for one that does not exist."""
    wanted = list(dict.fromkeys(names))
    found = await cluster.existing_topics(wanted) if wanted else {}
    results: Results[str, TopicDescription] = Results()
    for name in wanted:
        topic = found.get(name)
        if topic is None or topic.error_code:
            results.errors[name] = _error(name, topic)
        else:
            results.values[name] = _described(topic)
    return results


def _error(name: str, topic: TopicInfo | None) -> AsyncGroupError:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
    return BrokerError(code, f"describing topic {name!r}")


def _described(topic: TopicInfo) -> TopicDescription:
    partitions = tuple(_partition(topic.partitions, number) for number in topic.numbers)
    return TopicDescription(topic.name, topic.topic_id, topic.is_internal, partitions)


def _partition(partitions: Mapping[int, PartitionInfo], number: int) -> PartitionDescription:
    found = partitions[number]
    return PartitionDescription(
        partition=number,
        leader=found.leader if found.leader >= 0 else None,
        leader_epoch=found.leader_epoch if found.leader_epoch >= 0 else None,
        replicas=found.replicas,
        isr=found.isr,
        offline_replicas=found.offline_replicas,
    )
