"""How even a plan is, and what it moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from asyncgroup.group.assignors import MemberSubscription
from asyncgroup.group.assignors.sticky import find_owners
from asyncgroup.group.assignors.sticky_user_data import MemberData, decode_member_data, encode_member_data
from asyncgroup.model import TopicPartition

__all__ = ["loads", "moved", "with_claims"]


def loads(plan: Mapping[str, Iterable[TopicPartition]]) -> list[int]:
    """How many partitions the members have, ascending."""
    return sorted(len(list(partitions)) for partitions in plan.values())


def with_claims(
    members: Iterable[MemberSubscription],
    had: Mapping[str, MemberData] | Mapping[str, Sequence[TopicPartition]],
    generation: int = 1,
) -> list[MemberSubscription]:
    """The members with what they had as their user data; one that had nothing to remember says nothing."""
    found = []
    for member in members:
        said = had.get(member.member_id)
        if said is not None:
            claim = said if isinstance(said, MemberData) else MemberData(tuple(said), generation)
            member = replace(member, user_data=encode_member_data(claim))
        found.append(member)
    return found


def moved(
    members: Sequence[MemberSubscription],
    counts: Mapping[str, int],
    plan: Mapping[str, Iterable[TopicPartition]],
) -> int:
    """How many partitions that a member has by right come to another."""
    owners = find_owners(members, counts, [decode_member_data(member.user_data) for member in members])
    takers = {tp: member_id for member_id, partitions in plan.items() for tp in partitions}
    return sum(takers[tp] != members[owner].member_id for tp, owner in owners.items())
