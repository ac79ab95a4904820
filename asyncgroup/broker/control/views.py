"""Snapshots of a cluster's nodes, topics, groups and transactional ids, as `EmbeddedCluster` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from asyncgroup.broker.groups.classic.classic_group import ClassicGroup
from asyncgroup.broker.groups.classic.group_member import GroupMember
from asyncgroup.broker.groups.consumer.consumer_group_member import ConsumerGroupMember, by_topic
from asyncgroup.broker.groups.consumer.heartbeat import DEFAULT_ASSIGNOR
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.consumer.topics import TopicsImage
from asyncgroup.broker.groups.shared.requests import CONSUMER_PROTOCOL, OffsetAndMetadata
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.errors import DecodeError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned

__all__ = [
    "GroupView",
    "MemberView",
    "NodeView",
    "PartitionView",
    "TopicView",
    "TransactionView",
    "view_consumer_group",
    "view_group",
    "view_node",
    "view_partition",
    "view_topic",
    "view_transaction",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node. It listens on `host` and `port`, and sends `advertised_host` to clients; it keeps its port while stopped.

    `delay` is what `EmbeddedCluster.slow_node` has set, in seconds.
    """

    id: int
    host: str
    advertised_host: str
    port: int
    rack: str | None
    running: bool
    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition; `leader` and `replicas` are node ids (leader -1: it is leaderless).

    The replicas share one log. `log_end_offset` is the offset of the next record; consumers see those before
    `high_watermark`, with `read_committed` those before `last_stable_offset`.
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic; `configs` are its own settings, without the defaults of the cluster."""

    name: str
    id: UUID
    configs: dict[str, str | None]
    partitions: tuple[PartitionView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    """A transactional id. `state` is Kafka's name (`Empty`, `Ongoing`, `CompleteCommit`, …).

    `partitions` are the partitions in the current transaction without a marker; `timeout` is in seconds.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout: float
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member of a group: `topics` is its subscription, `assignment` maps topics to sorted partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A snapshot of a group.

    `state` is Kafka's name (`Stable`, `Empty`, …; `Dead` if the group does not exist), `members` are in the order
    in which they joined, `coordinator` is a node id (-1: no coordinator). Of a group with the consumer protocol (KIP-848)
    `generation` is the group epoch, `protocol` the assignor, and there is no leader.
    """

    group_id: str
    coordinator: int
    state: str
    generation: int
    protocol: str | None
    leader: str | None
    members: dict[str, MemberView]
    offsets: dict[TopicPartition, OffsetAndMetadata]

    @property
    def assignment(self) -> dict[TopicPartition, str]:
        """The member id that each assigned partition belongs to."""
        return {
            TopicPartition(topic, partition): member.member_id
            for member in self.members.values()
            for topic, partitions in member.assignment.items()
            for partition in partitions
        }


def view_node(node: Node) -> NodeView:
    """Return a snapshot of a node."""
    return NodeView(
        id=node.id,
        host=node.host,
        advertised_host=node.advertised_host,
        port=node.port,
        rack=node.rack,
        running=node.running,
        delay=node.delay,
    )


def view_topic(topic: Topic) -> TopicView:
    """Return a snapshot of a topic and its partitions."""
    return TopicView(
        name=topic.name,
        id=topic.id,
        configs=dict(topic.configs),
        partitions=tuple(view_partition(each) for each in topic.partitions),
    )


def view_partition(partition: Partition) -> PartitionView:
    """Return a snapshot of a partition."""
    log = partition.log
    return PartitionView(
        topic=partition.topic,
        partition=partition.index,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        replicas=tuple(partition.replicas),
        log_start_offset=log.start_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        # one log for all replicas: the end is the same at each of them
        log_end_offset=log.end_offset,
    )


def view_transaction(transaction: TransactionMetadata) -> TransactionView:
    """Return a snapshot of a transactional id."""
    return TransactionView(
        transactional_id=transaction.transactional_id,
        state=str(transaction.state),
        producer_id=transaction.producer.id,
        producer_epoch=transaction.producer.epoch,
        timeout=transaction.timeout,
        # each marker that is written removes its partition
        partitions=tuple(transaction.partitions),
    )


def view_group(
    group_id: str,
    coordinator: int,
    group: ClassicGroup | None,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> GroupView:
    """Return a snapshot of `group` (None: it does not exist)."""
    if group is None:
        # the defaults of an empty group; Kafka describes a group that does not exist in the same way
        group = ClassicGroup(group_id)
        state = "Dead"
    else:
        state = str(group.state)
    return GroupView(
        group_id=group_id,
        coordinator=coordinator,
        state=state,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader,
        members={member_id: _view_member(group, member) for member_id, member in group.members.items()},
        offsets=dict(offsets),
    )


def view_consumer_group(
    group: ModernGroup,
    coordinator: int,
    topics: TopicsImage,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> GroupView:
    """Return a snapshot of a group with the consumer protocol."""
    return GroupView(
        group_id=group.group_id,
        coordinator=coordinator,
        state=str(group.state),
        generation=group.epoch,
        # without a preference the broker's first assignor counts
        protocol=group.preferred_assignor() or DEFAULT_ASSIGNOR,
        # the coordinator computes the assignment, so no member leads
        leader=None,
        members={key: _view_consumer(group, member, topics) for key, member in group.members.items()},
        offsets=dict(offsets),
    )


def _view_consumer(group: ModernGroup, member: ConsumerGroupMember, topics: TopicsImage) -> MemberView:
    # what the member may read now; its target may have more, which other members still give up
    named = {topics.name_of(topic_id): indexes for topic_id, indexes in by_topic(member.assigned).items()}
    return MemberView(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(group.topics_of(member))),
        # a deleted topic has an id and no name, until the member gives its partitions up
        assignment={name: tuple(indexes) for name, indexes in named.items() if name is not None},
    )


def _view_member(group: ClassicGroup, member: GroupMember) -> MemberView:
    topics: tuple[str, ...] = ()
    assignment: dict[str, tuple[int, ...]] = {}
    # the bytes of other types, such as those of Connect's workers, have other formats
    if group.protocol_type == CONSUMER_PROTOCOL:
        topics, assignment = _topics(group, member), _assignment(member)
    return MemberView(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client.id,
        client_host=member.client.host,
        topics=topics,
        assignment=assignment,
    )


def _topics(group: ClassicGroup, member: GroupMember) -> tuple[str, ...]:
    # during a join the group may have no protocol yet, or one that this member does not offer
    name = group.protocol_name if group.protocol_name in member.protocol_names else member.protocol_names[0]
    try:
        return tuple(decode_versioned(m.ConsumerProtocolSubscription, member.metadata(name)).topics)
    # the broker keeps any bytes of a member, as Kafka does: a client may have sent its own
    except DecodeError:
        return ()


def _assignment(member: GroupMember) -> dict[str, tuple[int, ...]]:
    # before the leader's first SyncGroup
    if not member.assignment:
        return {}
    try:
        assigned = decode_versioned(m.ConsumerProtocolAssignment, member.assignment).assigned_partitions
    except DecodeError:
        return {}
    # a topic without partitions assigns nothing
    return {topic.topic: tuple(sorted(topic.partitions)) for topic in assigned if topic.partitions}
