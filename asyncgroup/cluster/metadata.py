"""Cluster metadata: an immutable view, and pure functions that merge a Metadata response or a newer leader into the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from types import MappingProxyType
from uuid import UUID

from asyncgroup.counting import counted
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "BrokerInfo",
    "ClusterView",
    "PartitionInfo",
    "TopicInfo",
    "leader_and_epoch",
    "merge",
    "topic_error",
    "with_doubt",
    "with_leader",
    "without_controller",
]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker: node id, advertised host and port, rack."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: `leader` is a node id, or -1 if there is none; `leader_epoch` is -1 if the broker is too old (KIP-320)."""

    partition: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0
    # the leader epoch of the last Metadata response, if a Fetch or Produce response has named this leader since; else None
    _metadata_epoch: int | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its partitions by number; a topic with an `error_code` other than 0 cannot be used."""

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
    """A snapshot of the metadata: brokers by node id, topics by name. `updated_at` is loop time in seconds."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    updated_at: float = float("-inf")

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return a partition's metadata, or None if it is unknown."""
        info = self.topics.get(topic)
        return info.partitions.get(partition) if info is not None else None

    def leader(self, tp: TopicPartition) -> int:
        """Return the node id of a partition's leader; -1 if there is none, or if it is not one of the known brokers."""
        info = self.partition(*tp)
        return info.leader if info is not None and info.leader in self.brokers else -1

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of those of `topics` that exist."""
        return {name: len(self.topics[name].partitions) for name in topics if name in self.topics}


def leader_and_epoch(view: ClusterView, tp: TopicPartition) -> tuple[int, int]:
    """Return a partition's leader and leader epoch, each -1 if it is unknown: a change shows an election."""
    info = view.partition(*tp)
    return view.leader(tp), -1 if info is None else info.leader_epoch


def topic_error(view: ClusterView, name: str, count: int = 0) -> BrokerError | None:
    """Return why a topic cannot be used, or that it has fewer partitions than `count`; None if it can."""
    topic = view.topics.get(name)
    if topic is None:
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}", "it does not exist")
    if topic.error_code:
        return BrokerError(topic.error_code, f"topic {name!r}")
    if not topic.partitions:
        return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r}", "it has no partitions yet")
    if len(topic.partitions) < count:
        return BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"partition {TopicPartition(name, count - 1)}",
            f"the topic has {counted(len(topic.partitions), 'partition')}, this one does not exist",
        )
    return None


def merge(
    view: ClusterView, response: m.MetadataResponse, requested: Iterable[str] | None, now: float
) -> ClusterView:
    """Return the next view: the response's brokers and the requested topics (`requested` None: all topics).

    Topics that were not requested are dropped, because no later response would update them. A leader whose epoch is
    older than the known one is stale and ignored, unless the topic was recreated with another topic id, or `with_leader` has
    set the known one, and that node is in doubt or not among the response's brokers. A known partition that the response
    lacks is kept if the topic id is the same, because topics never lose partitions (KIP-320, KIP-516).
    """
    wanted = None if requested is None else set(requested)
    # negative ids are this client's bootstrap addresses; only a malformed response has them
    brokers = {
        b.node_id: BrokerInfo(b.node_id, b.host, b.port, b.rack) for b in response.brokers if b.node_id >= 0
    }
    topics: dict[str, TopicInfo] = {}
    for entry in response.topics:
        # a topic id that the broker does not know has no name
        if entry.name is None or (wanted is not None and entry.name not in wanted):
            continue
        topic = _topic(entry, view.topics.get(entry.name), brokers)
        if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            continue
        topics[topic.name] = topic
    return ClusterView(
        response.cluster_id, response.controller_id, MappingProxyType(brokers), MappingProxyType(topics), now
    )


def with_leader(
    view: ClusterView, tp: TopicPartition, leader: int, epoch: int, brokers: Iterable[BrokerInfo]
) -> ClusterView:
    """Return a view with a newer leader that a response named (KIP-951).

    The same view if the epoch is not newer, or if the leader is not among the known and the named brokers, as in
    `Metadata.updatePartitionLeadership`.
    """
    info = view.partition(*tp)
    known = {**view.brokers, **{broker.node_id: broker for broker in brokers if broker.node_id >= 0}}
    if info is None or epoch <= info.leader_epoch or leader not in known:
        return view
    # after several hints in a row it is still the epoch of the last Metadata response
    before = info.leader_epoch if info._metadata_epoch is None else info._metadata_epoch
    named = replace(info, leader=leader, leader_epoch=epoch, _metadata_epoch=before)
    return _with_partition(view, tp, named, known)


def with_doubt(view: ClusterView, tp: TopicPartition, node_id: int) -> ClusterView:
    """Return a view in which the next Metadata response decides again, because the leader `node_id` refused or did not answer.

    Only if a response named it: its epoch may be false, or of an election that did not last. In Java and librdkafka such an
    epoch stays until the brokers have reached it; franz-go gives it up after five refreshes (`kgo/metadata.go`).
    """
    info = view.partition(*tp)
    if info is None or info._metadata_epoch is None or info.leader != node_id:
        return view
    doubted = replace(info, leader_epoch=info._metadata_epoch, _metadata_epoch=None)
    return _with_partition(view, tp, doubted, view.brokers)


def without_controller(view: ClusterView, node_id: int) -> ClusterView:
    """Return a view without a controller if `node_id` is the known one, which refused a request or did not answer."""
    return replace(view, controller_id=-1) if view.controller_id == node_id else view


def _with_partition(
    view: ClusterView, tp: TopicPartition, info: PartitionInfo, brokers: Mapping[int, BrokerInfo]
) -> ClusterView:
    topic = view.topics[tp.topic]
    partitions = MappingProxyType({**topic.partitions, tp.partition: info})
    topics = {**view.topics, tp.topic: replace(topic, partitions=partitions)}
    return replace(view, topics=MappingProxyType(topics), brokers=MappingProxyType(dict(brokers)))


def _topic(
    entry: m.MetadataResponse.MetadataResponseTopic, old: TopicInfo | None, brokers: Mapping[int, BrokerInfo]
) -> TopicInfo:
    known: Mapping[int, PartitionInfo] = {}
    # brokers before Kafka 2.8 send no topic ids; then only leader epochs show what is newer
    if old is not None and (old.topic_id == entry.topic_id or m.NO_UUID in (old.topic_id, entry.topic_id)):
        known = old.partitions
    certain = old is not None and old.topic_id == entry.topic_id != m.NO_UUID and not entry.error_code
    # topics never lose partitions: a broker that does not list one lags
    partitions = dict(known) if certain else {}
    for p in entry.partitions:
        before = known.get(p.partition_index)
        # the leader that a response named has gone: its epoch may never be reached
        if before is not None and before._metadata_epoch is not None and before.leader not in brokers:
            before = replace(before, leader_epoch=before._metadata_epoch, _metadata_epoch=None)
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
        # not a valid topic: partition numbers run from 0 without gaps, so only those before the first gap are used
        numbers = takewhile(partitions.__contains__, count())
        partitions = {number: partitions[number] for number in numbers}
    assert entry.name is not None
    return TopicInfo(
        entry.name, entry.topic_id, MappingProxyType(partitions), entry.error_code, entry.is_internal
    )
