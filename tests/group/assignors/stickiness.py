"""Measure the balance of an assignment, and its moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from asyncgroup.group.assignors import MemberSubscription
from asyncgroup.group.assignors.sticky import find_owners
from asyncgroup.group.assignors.sticky_user_data import MemberData, decode_member_data, encode_member_data
from asyncgroup.model import TopicPartition

__all__ = ["all_of", "loads", "moved", "owning", "with_claims"]


def loads(plan: Mapping[str, Iterable[TopicPartition]]) -> list[int]:
    """Return the numbers of partitions of the members, ascending."""
    return sorted(len(list(partitions)) for partitions in plan.values())


def with_claims(
    members: Iterable[MemberSubscription],
    had: Mapping[str, MemberData] | Mapping[str, Sequence[TopicPartition]],
    generation: int = 1,
) -> list[MemberSubscription]:
    """Return the members with their owned partitions as user data; members not in `had` have no user data."""
    found = []
    for member in members:
        owned = had.get(member.member_id)
        if owned is not None:
            claim = owned if isinstance(owned, MemberData) else MemberData(tuple(owned), generation)
            member = replace(member, user_data=encode_member_data(claim))
        found.append(member)
    return found


def owning(
    members: Iterable[MemberSubscription], plan: Mapping[str, Sequence[TopicPartition]], generation: int
) -> list[MemberSubscription]:
    """Return the members with what they own after this plan, with their own user data; those that it lacks are unchanged."""
    return [
        replace(member, owned=tuple(plan[member.member_id]), generation_id=generation)
        if member.member_id in plan
        else member
        for member in members
    ]


def moved(
    members: Sequence[MemberSubscription],
    counts: Mapping[str, int],
    plan: Mapping[str, Iterable[TopicPartition]],
) -> int:
    """Return how many owned partitions move to another member."""
    owners = find_owners(members, counts, [decode_member_data(member.user_data) for member in members])
    takers = {tp: member_id for member_id, partitions in plan.items() for tp in partitions}
    return sum(takers[tp] != members[owner].member_id for tp, owner in owners.items())


def all_of(plan: Mapping[str, Iterable[TopicPartition]]) -> list[TopicPartition]:
    """Return the partitions of all members, sorted."""
    return sorted(tp for partitions in plan.values() for tp in partitions)
