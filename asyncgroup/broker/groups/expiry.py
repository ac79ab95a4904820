"""Find the expired offsets of a group (KIP-211).

Pure functions; times are in ms. They correspond to Kafka's `ClassicGroup.offsetExpirationCondition` and
`OffsetExpirationConditionImpl`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from asyncgroup.broker.groups.group import ClassicGroup
from asyncgroup.broker.groups.requests import OffsetAndMetadata
from asyncgroup.broker.groups.state import ClassicGroupState
from asyncgroup.model import TopicPartition

__all__ = ["expired_offsets"]


def expired_offsets(
    group: ClassicGroup,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    unstable: Collection[TopicPartition],
    now: int,
    retention: int,
) -> list[TopicPartition]:
    """Return the partitions whose offsets are older than `retention` (ms) at `now`, except the `unstable` ones.

    When the retention of an offset begins:
    - in an empty group, when the group became empty;
    - in a group without members ever (manual assignment), at the commit;
    - in a stable group, at the commit, and only for topics that no member subscribes to;
    - never while a group rebalances or its subscriptions are unknown.

    An offset with an expire timestamp of its own (OffsetCommit 2-4) expires at that time instead.
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
