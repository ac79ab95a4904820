"""What is known of a cluster: an immutable view, and the pure step from one view and a response to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from types import MappingProxyType
from uuid import UUID

from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["BrokerInfo", "ClusterView", "PartitionInfo", "TopicInfo", "merge"]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker: node id, where it listens, its rack."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: `leader` is a node id or -1, `leader_epoch` -1 where the broker doesn't say (KIP-320)."""

    partition: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: its partitions by number; `error_code` is not 0 for a topic that cannot be used."""

    name: str
    topic_id: UUID = m.NO_UUID
    partitions: Mapping[int, PartitionInfo] = field(default_factory=dict)
    error_code: int = 0
    is_internal: bool = False

    @property
    def numbers(self) -> list[int]:
        """The partition numbers in order."""
        return sorted(self.partitions)

    @property
    def writable(self) -> list[int]:
        """The numbers of the partitions that have a leader, in order."""
        return [number for number in self.numbers if self.partitions[number].leader >= 0]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A snapshot: brokers by node id, topics by name. `updated_at` is the loop's time in seconds."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    updated_at: float = float("-inf")

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """What is known of a partition, None if nothing is."""
        info = self.topics.get(topic)
        return info.partitions.get(partition) if info is not None else None

    def leader(self, tp: TopicPartition) -> int:
        """The node that leads a partition, -1 if none is known."""
        info = self.partition(*tp)
        return info.leader if info is not None and info.leader in self.brokers else -1

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partition counts of those of `topics` that exist."""
        return {name: len(self.topics[name].partitions) for name in topics if name in self.topics}

    def with_leader(
        self, tp: TopicPartition, leader: int, epoch: int, brokers: Iterable[BrokerInfo]
    ) -> ClusterView:
        """The view after a hint about a newer leader (KIP-951); unchanged if the hint is not newer."""
        info = self.partition(*tp)
        if info is None or epoch <= info.leader_epoch:
            return self
        topic = self.topics[tp.topic]
        partitions = {**topic.partitions, tp.partition: replace(info, leader=leader, leader_epoch=epoch)}
        topics = {**self.topics, tp.topic: replace(topic, partitions=MappingProxyType(partitions))}
        known = {**self.brokers, **{broker.node_id: broker for broker in brokers if broker.node_id >= 0}}
        return replace(self, topics=MappingProxyType(topics), brokers=MappingProxyType(known))


def merge(
    view: ClusterView, response: m.MetadataResponse, requested: Iterable[str] | None, now: float
) -> ClusterView:
    """The next view: brokers as the response says, topics that were asked for (None: all of the cluster).

    Topics that were not asked for are forgotten: nobody would ever correct what is known of them. A leader with an
    older epoch than the known one is stale news and is left out, and so is a missing partition, as a topic never
    loses one; unless the topic was recreated under another id (KIP-320, KIP-516).
    """
    wanted = None if requested is None else set(requested)
    topics: dict[str, TopicInfo] = {}
    for entry in response.topics:
        if entry.name is None or (wanted is not None and entry.name not in wanted):
            continue
        topic = _topic(entry, view.topics.get(entry.name))
        if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            continue
        topics[topic.name] = topic
    brokers = {
        b.node_id: BrokerInfo(b.node_id, b.host, b.port, b.rack)
        for b in response.brokers
        if b.node_id >= 0  # below zero are bootstrap addresses; only a spoilt answer has such a broker
    }
    return ClusterView(
        response.cluster_id, response.controller_id, MappingProxyType(brokers), MappingProxyType(topics), now
    )


def _topic(entry: m.MetadataResponse.MetadataResponseTopic, old: TopicInfo | None) -> TopicInfo:
    known: Mapping[int, PartitionInfo] = {}
    # an id is missing where the broker is older than the ids: the epochs have to do alone then
    if old is not None and (old.topic_id == entry.topic_id or m.NO_UUID in (old.topic_id, entry.topic_id)):
        known = old.partitions
    certain = old is not None and old.topic_id == entry.topic_id != m.NO_UUID and not entry.error_code
    partitions = dict(known) if certain else {}
    for p in entry.partitions:
        before = known.get(p.partition_index)
        if before is not None and before.leader_epoch > p.leader_epoch >= 0:
            partitions[p.partition_index] = before
            continue
        partitions[p.partition_index] = PartitionInfo(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
            p.error_code,
        )
    if partitions and not 0 <= min(partitions) <= max(partitions) < len(partitions):
        # no topic is like that: what has no place, or stands behind a gap, is left out
        numbers = takewhile(partitions.__contains__, count())
        partitions = {number: partitions[number] for number in numbers}
    assert entry.name is not None
    return TopicInfo(
        entry.name, entry.topic_id, MappingProxyType(partitions), entry.error_code, entry.is_internal
    )
