"""The stories about groups that hold for every protocol, also on a Kafka that cannot stop a node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.stories import failover, membership
from tests.stories.environment import Environment

__all__ = ["OF_GROUPS"]

OF_GROUPS: list[Callable[[Environment], Awaitable[None]]] = [
    membership.two_joiners,
    membership.graceful_leave,
    membership.a_leader_leaves,
    membership.partition_increase,
    membership.more_members_than_partitions,
    membership.a_member_changes_its_topics,
    membership.static_leader_restarts,
    failover.crash_found_by_expiry,
    failover.a_consumer_dies,
    failover.a_zombie_wakes,
]
