"""Which offsets a group has had for too long (KIP-211; Kafka's `ClassicGroup.offsetExpirationCondition` and
`OffsetExpirationConditionImpl`). Pure; times are ms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from asyncgroup.broker.coordinator.group import ClassicGroup
from asyncgroup.broker.coordinator.requests import OffsetAndMetadata
from asyncgroup.broker.coordinator.state import ClassicGroupState
from asyncgroup.model import TopicPartition

__all__ = ["expired_offsets"]


def expired_offsets(
    group: ClassicGroup,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    unstable: Collection[TopicPartition],
    now: int,
    retention: int,
) -> list[TopicPartition]:
    """The partitions whose offsets have outlived `retention` (ms); those in open transactions stay.

    The retention begins with the moment in which a group became empty, for others and for consumers without a group with
    the commit. A live group keeps the offsets of the topics that it subscribes to, and all while it rebalances or
    where the subscriptions are not known. A commit that said itself when it expires does so then.
    """
    if group.protocol_type is None:
        since = -1
    elif group.state is ClassicGroupState.EMPTY:
        since = group.current_state_timestamp
    elif group.subscribed_topics is not None and group.state is ClassicGroupState.STABLE:
        since = -1
    else:
        return []
    expired = []
    for tp, offset in offsets.items():
        if group.is_subscribed_to(tp.topic) or tp in unstable:
            continue
        begin = since if since >= 0 else offset.commit_timestamp
        end = offset.expire_timestamp if offset.expire_timestamp >= 0 else begin + retention
        if now >= end:
            expired.append(tp)
    return expired
