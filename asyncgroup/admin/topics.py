"""Topics as an administrator sees them: what they are called, and where their partitions are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from asyncgroup.admin.acl_values import OPERATIONS
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.metadata import PartitionInfo, TopicInfo
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.topic_pages import PAGE_SIZE, DescribedTopic, describe_topic_pages
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.wire import messages as m

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
    elr: tuple[int, ...] | None = None
    """The eligible leader replicas: not in sync, but complete up to the high watermark (KIP-966); None if the broker does not say it,
    as before Kafka 3.8."""
    last_known_elr: tuple[int, ...] | None = None
    """The eligible leader replicas that were lost in an unclean shutdown; see `elr`."""

    @property
    def is_under_replicated(self) -> bool:
        """Whether not all replicas are in sync.

        During a reassignment the replicas that are being added count; `kafka-topics --under-replicated-partitions` leaves them
        out.
        """
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
    authorized_operations: frozenset[str] | None = None
    """What this user may do with the topic, in the words of ACLs (KIP-430). None before Kafka 3.8: only
    DescribeTopicPartitions asks for it."""


async def list_topics(cluster: ClusterClient, *, internal: bool) -> tuple[TopicListing, ...]:
    """Return the topics that the user may describe, sorted by name."""
    found = await cluster.all_topics()
    return tuple(
        TopicListing(name, topic.topic_id, topic.is_internal, len(topic.partitions))
        for name, topic in sorted(found.items())
        if internal or not topic.is_internal
    )


async def describe_topics(
    cluster: ClusterClient, names: Iterable[str], budget: RequestBudget, *, page_size: int = PAGE_SIZE
) -> Results[str, TopicDescription]:
    """Return each topic, or its error: UNKNOWN_TOPIC_OR_PARTITION for one that does not exist.

    Page by page where brokers have that, otherwise by one Metadata request, as Java's Admin.
    """
    wanted = list(dict.fromkeys(names))
    found = await describe_topic_pages(cluster, wanted, budget, page_size=page_size)
    values = {name: _from_page(name, topic) for name, topic in found.values.items()}
    results = Results(values, found.errors)
    left = [name for name in wanted if name not in values and name not in results.errors]
    if left:
        try:
            by_metadata = await budget.limit(_by_metadata(cluster, left))
        except TransportError as error:
            if len(left) == len(wanted):
                raise
            by_metadata = Results.failed(left, error)
        results.values |= by_metadata.values
        results.errors |= by_metadata.errors
    return results.in_order(wanted)


# --- pages (DescribeTopicPartitions) ------------------------------------------------------------------------------------


def _from_page(name: str, topic: DescribedTopic) -> TopicDescription:
    partitions = tuple(_partition_of_page(part) for part in topic.partitions)
    operations = _operations(topic.topic_authorized_operations)
    return TopicDescription(name, topic.topic_id, topic.is_internal, partitions, operations)


def _partition_of_page(
    part: m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition,
) -> PartitionDescription:
    elr, last_known = part.eligible_leader_replicas, part.last_known_elr
    return PartitionDescription(
        partition=part.partition_index,
        leader=part.leader_id if part.leader_id >= 0 else None,
        leader_epoch=part.leader_epoch if part.leader_epoch >= 0 else None,
        replicas=tuple(part.replica_nodes),
        isr=tuple(part.isr_nodes),
        offline_replicas=tuple(part.offline_replicas),
        elr=None if elr is None else tuple(elr),
        last_known_elr=None if last_known is None else tuple(last_known),
    )


def _operations(bits: int) -> frozenset[str] | None:
    """Return the operations of a bit field; `AUTHORIZED_OPERATIONS_OMITTED` in `MetadataResponse` is the lowest int32."""
    if bits == -(2**31):
        return None
    return frozenset(name for name, number in OPERATIONS.items() if bits >> number & 1)


# --- Metadata -----------------------------------------------------------------------------------------------------------


async def _by_metadata(cluster: ClusterClient, names: Iterable[str]) -> Results[str, TopicDescription]:
    wanted = list(names)
    found = await cluster.existing_topics(wanted)
    results: Results[str, TopicDescription] = Results()
    for name in wanted:
        topic = found.get(name)
        if topic is None or topic.error_code:
            results.errors[name] = _error(name, topic)
        else:
            results.values[name] = _from_metadata(topic)
    return results


def _error(name: str, topic: TopicInfo | None) -> AsyncGroupError:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
    return BrokerError(code, f"describing topic {name!r}")


def _from_metadata(topic: TopicInfo) -> TopicDescription:
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
