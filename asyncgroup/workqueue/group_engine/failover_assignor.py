"""FailoverAssignor: the members of the highest priority share the partitions, the others stand by."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.checks import TEXT
from asyncgroup.errors import ConfigError
from asyncgroup.group.assignors.cooperative import withhold_claimed
from asyncgroup.group.assignors.protocol import MemberSubscription
from asyncgroup.model import TopicPartition

__all__ = ["FailoverAssignor"]

_HEADER: Final = struct.Struct(">hih")
"""Version, priority, and the length of the name, which follows in UTF-8. Later versions may append fields."""

_VERSION: Final = 0
_LOWEST: Final = (1 << 31) - 1


class FailoverAssignor:
    """Assigns each topic to its subscribers of the highest priority, sorted by name: partition p to number p modulo their count.

    Pulsar's subscription type Failover (`pickAndScheduleActiveConsumer` in `AbstractDispatcherSingleActiveConsumer`, without
    the hash ring that newer versions have for topics without partitions): 0 is the highest priority, and a lower one gets
    nothing while a higher one is present. Members with equal names are sorted as other assignors do it, by group instance id
    or member id; the latter changes with each join, so give each member a name.

    It is cooperative (KIP-429): partitions that stay are not interrupted; one that moves is assigned in a second rebalance,
    when its owner has revoked it. Each member sends its priority and name as user data. A member with invalid user data has
    a lower priority than all others.
    """

    name = "asyncgroup-failover"
    is_cooperative = True

    def __init__(self, priority: int = 0, name: str = "") -> None:
        """`name` is the member's. Raises ConfigError for an invalid argument."""
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= _LOWEST:
            raise ConfigError("priority", priority, f"a whole number from 0, the highest, to {_LOWEST}")
        is_text, allowed = TEXT
        if not is_text(name):
            raise ConfigError("name", name, allowed)
        self.priority = priority
        self.member_name = name

    def __repr__(self) -> str:
        return f"<FailoverAssignor: priority {self.priority}, member {self.member_name!r}>"

    def subscription_user_data(self, topics: Sequence[str]) -> bytes:  # noqa: ARG002  the same for all
        """Return the member's priority and name."""
        name = self.member_name.encode()
        return _HEADER.pack(_VERSION, self.priority, len(name)) + name

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Return sorted partitions by member id, without those that another member has yet to revoke."""
        ranked = sorted(((_rank(member), member) for member in members), key=lambda pair: pair[0])
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for _, member in ranked}
        for topic in sorted(counts):
            subscribers = [(rank, member) for rank, member in ranked if topic in member.topics]
            active = [m for rank, m in subscribers if rank.priority == subscribers[0][0].priority]
            for number in range(counts[topic] if active else 0):
                plan[active[number % len(active)].member_id].append(TopicPartition(topic, number))
        return withhold_claimed([member for _, member in ranked], plan, counts)


class _Rank(NamedTuple):
    """Sort key of a member; the first ones are active."""

    priority: int
    name: str
    order: tuple[bool, str]


def _rank(member: MemberSubscription) -> _Rank:
    """Return the member's rank; it is the lowest if the user data is invalid."""
    data = member.user_data or b""
    try:
        version, priority, length = _HEADER.unpack_from(data)
        name = data[_HEADER.size : _HEADER.size + length]
        if version >= 0 and priority >= 0 and 0 <= length == len(name):
            return _Rank(priority, name.decode(), member.order)
    except (struct.error, UnicodeDecodeError):
        pass
    return _Rank(_LOWEST + 1, "", member.order)
