"""Creation of `__consumer_offsets`, the internal topic of the group coordinators."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from asyncgroup.broker.metadata.topics import OFFSETS_TOPIC, Topic

__all__ = ["OFFSETS_PARTITIONS", "new_offsets_topic"]

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
