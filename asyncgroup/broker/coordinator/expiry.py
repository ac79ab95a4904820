"""Which offsets a group has had for too long (KIP-211; Kafka's `ClassicGroup.offsetExpirationCondition` and
`OffsetExpirationConditionImpl`). Pure; times are ms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from asyncgroup.broker.coordinator.calls import CommittedOffset
from asyncgroup.broker.coordinator.group import CONSUMER_PROTOCOL, ClassicGroup
from asyncgroup.broker.coordinator.state import GroupState
from asyncgroup.errors import DecodeError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.versioned import decode_versioned

__all__ = ["expired_offsets", "is_subscribed", "subscribed_topics"]


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that members of a consumer group want; None if that cannot be known."""
    if group.protocol_type != CONSUMER_PROTOCOL or (group.members and group.protocol_name is None):
        return None
    found: set[str] = set()
    for member in group.members.values():
        if group.protocol_name in member.protocol_names:  # else it came after the protocol was chosen
            try:
                metadata = member.metadata(group.protocol_name)
                found.update(decode_versioned(m.ConsumerProtocolSubscription, metadata).topics)
            except DecodeError:
                return None
    return frozenset(found)


def is_subscribed(group: ClassicGroup, topic: str) -> bool:
    """Whether members may want the topic: a consumer group whose subscriptions are not known may want any."""
    topics = subscribed_topics(group)
    return group.protocol_type == CONSUMER_PROTOCOL if topics is None else topic in topics


def expired_offsets(
    group: ClassicGroup,
    offsets: Mapping[TopicPartition, CommittedOffset],
    pending: Collection[TopicPartition],
    now: int,
    retention: int,
) -> list[TopicPartition]:
    """The partitions whose offsets have outlived `retention` (ms); those in open transactions stay.

    The retention begins with the moment in which a group became empty, for others and for consumers without a group with
    the commit. A live group keeps the offsets of the topics that it subscribes to, and all while it rebalances or
    where the subscriptions are not known. A commit that said itself when it expires does so then.
    """
    if group.protocol_type is None:
        kept, since = frozenset[str](), -1
    elif group.state is GroupState.EMPTY:
        kept, since = frozenset[str](), group.current_state_timestamp
    else:
        topics = subscribed_topics(group)
        if topics is None or group.state is not GroupState.STABLE:
            return []
        kept, since = topics, -1
    expired = []
    for tp, offset in offsets.items():
        if tp.topic in kept or tp in pending:
            continue
        begin = since if since >= 0 else offset.commit_timestamp
        end = offset.expire_timestamp if offset.expire_timestamp >= 0 else begin + retention
        if now >= end:
            expired.append(tp)
    return expired
