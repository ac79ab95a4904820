"""ExclusiveAssignor: all partitions go to one member, and the others learn that it holds the group."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.group.assignors.cooperative import claimed_partitions, withhold_claimed
from asyncgroup.group.assignors.protocol import Assignment, MemberSubscription
from asyncgroup.group.assignors.sticky import find_owners
from asyncgroup.group.locks.assignor import encode_since, waiting_order
from asyncgroup.model import TopicPartition

__all__ = ["ExclusiveAssignor", "GroupHolder", "decode_holder"]

_HEADER: Final = struct.Struct(">h?h")
"""Version, whether the member holds the group, and the length of the holder's member id, which follows in UTF-8.

Later versions may append fields.
"""

_VERSION: Final = 0


class GroupHolder(NamedTuple):
    """Which member holds the group."""

    is_own: bool
    """Whether it is the member with this assignment. A static member can have another member id since (KIP-345)."""
    member_id: str
    """The holder's member id when the partitions were assigned."""


class ExclusiveAssignor:
    """Assigns all partitions to the member that owns some, or else to the one that waits for the longest time.

    Pulsar's subscription type Exclusive. The assignor cannot refuse the other members: the user data of their assignments
    says that another one holds the group, and they are to leave (see `exclusive_group`).

    It is cooperative (KIP-429), so that the owner is not interrupted while others join and leave. `since_ms` is the time of
    day in ms at which this member began to wait.
    """

    name = "asyncgroup-exclusive"
    is_cooperative = True

    def __init__(self, since_ms: int) -> None:
        self._since = since_ms

    def __repr__(self) -> str:
        return f"<ExclusiveAssignor since {self._since}>"

    def subscription_user_data(self, topics: Sequence[str]) -> bytes:  # noqa: ARG002  the same for all
        """Return the time at which this member began to wait."""
        return encode_since(self._since)

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, Assignment]:
        """Return the assignments by member id; partitions that another member has yet to revoke are assigned to none."""
        queue = sorted(members, key=waiting_order)
        if not queue:
            return {}
        holder = queue[_holder(queue, counts)]
        wanted = {topic: counts[topic] for topic in sorted(counts) if topic in holder.topics}
        everything = [TopicPartition(topic, number) for topic in wanted for number in range(wanted[topic])]
        plan = withhold_claimed(queue, {holder.member_id: everything}, counts)
        return {
            member.member_id: Assignment(
                tuple(plan.get(member.member_id, ())),
                _encode_holder(GroupHolder(member is holder, holder.member_id)),
            )
            for member in queue
        }


def _holder(queue: Sequence[MemberSubscription], counts: Mapping[str, int]) -> int:
    """Return the index of the member that owns partitions, of several the one with the newest claim; else 0."""
    claims = claimed_partitions(queue)
    owners = set(find_owners(queue, counts, claims).values())
    return min(owners, key=lambda index: (-claims[index].generation, index), default=0)


def _encode_holder(holder: GroupHolder) -> bytes:
    member_id = holder.member_id.encode()
    return _HEADER.pack(_VERSION, holder.is_own, len(member_id)) + member_id


def decode_holder(data: bytes | None) -> GroupHolder | None:
    """Decode the user data of an assignment; None if it is not that of an ExclusiveAssignor."""
    try:
        version, is_own, length = _HEADER.unpack_from(data or b"")
        member_id = (data or b"")[_HEADER.size : _HEADER.size + length]
        if version >= 0 and 0 <= length == len(member_id):
            return GroupHolder(is_own, member_id.decode())
    except (struct.error, UnicodeDecodeError):
        pass
    return None
