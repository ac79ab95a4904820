"""Topics and partitions: configs, replicas, leaders, leader epochs and logs; the internal topic `__consumer_offsets`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.log.batch_validator import BatchValidator
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.topic_configs import DEFAULTS, LogConfig
from asyncgroup.checks import is_legal_name
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "INTERNAL_TOPICS",
    "NO_LEADER",
    "OFFSETS_PARTITIONS",
    "OFFSETS_TOPIC",
    "Partition",
    "Topic",
    "check_collisions",
    "check_topic_name",
    "new_offsets_topic",
]

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The internal topic in which the group coordinators store groups and committed offsets."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})
"""Internal topics, which clients may not write to (`Topic.INTERNAL_TOPICS`)."""

NO_LEADER: Final = -1
"""Value of `Partition.leader` if none of the replicas is alive."""


class Partition:
    """One partition with its log, replicas (node ids) and leader. The leader epoch counts leader changes (KIP-101)."""

    __slots__ = (
        "config",
        "deleted",
        "index",
        "leader",
        "leader_epoch",
        "log",
        "replicas",
        "topic",
        "validator",
    )

    def __init__(self, topic: str, index: int, replicas: list[int], leader: int) -> None:
        self.topic = topic
        self.index = index
        self.replicas = replicas
        self.leader = leader
        self.leader_epoch = 0
        self.deleted = False
        self.config = DEFAULTS
        self.validator = BatchValidator(topic, index, DEFAULTS)
        self.log = PartitionLog(topic, index)
        self.log.start_epoch(0)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} leader={self.leader} epoch={self.leader_epoch} {self.log!r}>"

    def configure(self, config: LogConfig) -> None:
        """Apply new configs."""
        self.config = config
        self.validator = BatchValidator(self.topic, self.index, config)
        self.log.segments.segment_bytes = config.segment_bytes
        self.log.segments.segment_ms = config.max_segment_ms

    def set_leader(self, node_id: int) -> None:
        """Set the leader (NO_LEADER: none) and increment the leader epoch."""
        self.leader = node_id
        self.leader_epoch += 1
        if node_id != NO_LEADER:
            self.log.start_epoch(self.leader_epoch)


class Topic:
    """A topic with its id, its partitions and its own configs."""

    __slots__ = ("config", "configs", "id", "name", "partitions")

    def __init__(self, name: str, topic_id: UUID, configs: Mapping[str, str | None]) -> None:
        self.name = name
        self.id = topic_id
        self.configs: dict[str, str | None] = {}
        self.config = DEFAULTS
        self.partitions: list[Partition] = []
        self.configure(configs)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} {len(self.partitions)} partitions>"

    @property
    def is_internal(self) -> bool:
        """Whether it is an internal topic (Kafka's `Topic.isInternal`)."""
        return self.name in INTERNAL_TOPICS

    def configure(self, configs: Mapping[str, str | None]) -> None:
        """Replace the topic's configs; `check_configs` must have passed."""
        self.configs = dict(configs)
        self.config = LogConfig.of(configs) if configs else DEFAULTS
        for partition in self.partitions:
            partition.configure(self.config)

    def add_partition(self, replicas: list[int], leader: int) -> Partition:
        """Add a partition with the topic's configs."""
        partition = Partition(self.name, len(self.partitions), replicas, leader)
        partition.configure(self.config)
        self.partitions.append(partition)
        return partition


def check_topic_name(name: str | None) -> None:
    """Raise Refused(INVALID_TOPIC_EXCEPTION) for a name that Kafka does not allow."""
    if name is None or not is_legal_name(name):
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name!r} is not allowed: 1 to 249 of the characters a-z A-Z 0-9 . _ -",
        )


def check_collisions(name: str, others: Iterable[str]) -> None:
    """Raise Refused(INVALID_TOPIC_EXCEPTION) for a name that collides with another topic's in Kafka's metrics.

    Metric names replace dots by underscores (`Topic.unifyCollisionChars`).
    """
    if not set(name) & set("._"):
        return
    unified = name.replace(".", "_")
    if other := next((each for each in others if each.replace(".", "_") == unified), None):
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with existing topic: {other}"
        )


OFFSETS_PARTITIONS: Final = 50
"""Kafka's default of `offsets.topic.num.partitions`."""

_OFFSETS_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
"""As in `GroupCoordinatorService.groupMetadataTopicConfigs`."""


def new_offsets_topic(cluster_id: str, node_ids: Sequence[int], leaders: Sequence[int]) -> Topic:
    """Return a new `__consumer_offsets` with these leaders.

    Every node has a replica, so that groups survive as long as one node is alive. The topic's id is derived from
    the cluster's id: the topic is created at any time and must not consume seeded randomness.
    """
    topic = Topic(
        OFFSETS_TOPIC, uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id} {OFFSETS_TOPIC}"), _OFFSETS_CONFIGS
    )
    for number, leader in enumerate(leaders):
        first = node_ids.index(leader) if leader in node_ids else number % len(node_ids)
        topic.add_partition([*node_ids[first:], *node_ids[:first]], leader)
    return topic
