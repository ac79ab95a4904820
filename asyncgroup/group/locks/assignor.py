"""LockAssignor: partition 0 goes to one member, which keeps it; the group is a lock."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from asyncgroup.group.assignors.cooperative import claimed_partitions, withhold_claimed
from asyncgroup.group.assignors.protocol import MemberSubscription
from asyncgroup.group.assignors.sticky import find_owners
from asyncgroup.model import TopicPartition

__all__ = ["LockAssignor", "encode_since", "waiting_order"]

_SINCE: Final = struct.Struct(">q")


class LockAssignor:
    """Assigns partition 0 of each topic to its owner, or else to the member that waits for the longest time.

    It is cooperative (KIP-429), so that the owner keeps the partition while others join. All other partitions stay
    unassigned. `since` is the time of day in ms at which this member began to wait.
    """

    name = "asyncgroup-lock"
    is_cooperative = True

    def __init__(self, since: int) -> None:
        self._since = since

    def __repr__(self) -> str:
        return f"<LockAssignor since {self._since}>"

    def subscription_user_data(self, topics: Sequence[str]) -> bytes:  # noqa: ARG002  the same for all
        """Return the time at which this member began to wait."""
        return encode_since(self._since)

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions by member id."""
        queue = sorted(members, key=waiting_order)
        owners = find_owners(queue, counts, claimed_partitions(queue))
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for member in queue}
        for topic in sorted(counts):
            tp = TopicPartition(topic, 0)
            waiting = [index for index, member in enumerate(queue) if topic in member.topics]
            if waiting:
                plan[queue[owners.get(tp, waiting[0])].member_id].append(tp)
        return withhold_claimed(queue, plan, counts)


def encode_since(since: int) -> bytes:
    """Return the user data of a member that began to wait at this time of day, in ms."""
    return _SINCE.pack(since)


def waiting_order(member: MemberSubscription) -> tuple[int, tuple[bool, str]]:
    """The sort key: the member that waits for the longest time first. Without valid user data it is before all others."""
    data = member.user_data or b""
    since = int(_SINCE.unpack(data)[0]) if len(data) == _SINCE.size else 0
    return since, member.order
