"""The consumer embedded protocol: subscriptions and assignments of members with the classic protocol.

To a classic group they are bytes that only consumers understand. A consumer group with such members reads and writes them.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.broker.groups.consumer.consumer_group_member import (
    TargetAssignment,
    TopicIdPartition,
    by_topic,
)
from asyncgroup.broker.groups.consumer.topics import TopicsImage
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned, encode_versioned

__all__ = ["assignment_bytes", "owned_partitions", "read_subscription", "with_ids"]

_HIGHEST_VERSION = 3
"""The highest version of ConsumerProtocolAssignment."""

Subscription = m.ConsumerProtocolSubscription
Assignment = m.ConsumerProtocolAssignment


def read_subscription(metadata: bytes) -> m.ConsumerProtocolSubscription:
    """Decode a member's metadata. Raise DecodeError."""
    return decode_versioned(Subscription, metadata)


def owned_partitions(subscription: m.ConsumerProtocolSubscription, topics: TopicsImage) -> TargetAssignment:
    """Return the partitions that a member owns according to its subscription, without topics that do not exist."""
    return with_ids(subscription.owned_partitions, topics)


def with_ids(
    found: Iterable[
        m.ConsumerProtocolAssignment.TopicPartition | m.ConsumerProtocolSubscription.TopicPartition
    ],
    topics: TopicsImage,
) -> TargetAssignment:
    """Return the partitions with the ids of their topics, without topics that do not exist."""
    return frozenset(
        TopicIdPartition(facts.id, index)
        for topic in found
        if (facts := topics.find(topic.topic)) is not None
        for index in topic.partitions
    )


def assignment_bytes(partitions: Iterable[TopicIdPartition], topics: TopicsImage, version: int) -> bytes:
    """Encode an assignment in the version of the member's subscription, without topics that do not exist."""
    found = [
        Assignment.TopicPartition(name, indexes)
        for topic_id, indexes in by_topic(partitions).items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    return encode_versioned(Assignment(found, None), min(version, _HIGHEST_VERSION))
