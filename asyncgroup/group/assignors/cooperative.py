"""The cooperative sticky assignor: no partition changes its owner within one rebalance (KIP-429)."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from asyncgroup.group.assignors.protocol import Assignment, MemberSubscription
from asyncgroup.group.assignors.racks import PartitionRacks
from asyncgroup.group.assignors.sticky import assign_sticky, find_owners
from asyncgroup.group.assignors.sticky_user_data import NO_GENERATION, MemberData
from asyncgroup.model import TopicPartition

__all__ = ["CooperativeStickyAssignor", "claimed_partitions", "withheld_partitions", "withhold_claimed"]

_GENERATION: Final = struct.Struct(">i")


class CooperativeStickyAssignor:
    """Assigns as `StickyAssignor`, in two rebalances, compatible with Java's `CooperativeStickyAssignor`.

    Members keep consuming during a rebalance. A partition that is to move is assigned to no member at first: its owner
    revokes it, commits and joins again, and only the assignment of that rebalance has its new owner. When all members
    have joined with what they were assigned, the assignment is that of `StickyAssignor`.

    Each member sends its owned partitions and their generation in its subscription (KIP-792); the generation is also
    in the user data, for leaders that read it there. The protocol is cooperative only if all assignors that the member
    offers are; beside others, such as `(cooperative-sticky, range)` for a rolling upgrade, all claims end at a rebalance.
    """

    name = "cooperative-sticky"
    is_cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION  # of the last assignment

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: generation {self._generation}>"

    def for_group(self) -> CooperativeStickyAssignor:
        """Return an assignor without state."""
        return type(self)()

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002  one generation for all
        """Return the generation of the last assignment; -1 before the first."""
        return _GENERATION.pack(self._generation)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:  # noqa: ARG002  the session has it
        """Keep the generation for the next join."""
        self._generation = generation_id

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Return sorted partitions by member id, without those that another member has yet to revoke."""
        return self.assign_by_rack(members, counts, {})

    def assign_by_rack(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int], racks: PartitionRacks
    ) -> dict[str, list[TopicPartition]]:
        """As `assign`, with racks; see `RackAware`."""
        ordered = sorted(members, key=lambda member: member.order)
        plan = assign_sticky(ordered, counts, claimed_partitions(ordered), racks)
        return withhold_claimed(ordered, plan, counts)


def claimed_partitions(members: Iterable[MemberSubscription]) -> list[MemberData]:
    """Return what each member says it owns, and in which generation it did.

    The generation is that of the subscription from version 2 on, else that of the user data (`memberData` in Java).
    """
    return [MemberData(tuple(member.owned), _generation_of(member)) for member in members]


def _generation_of(member: MemberSubscription) -> int:
    if member.generation_id >= 0 or not member.user_data or len(member.user_data) < _GENERATION.size:
        return member.generation_id
    generation: int = _GENERATION.unpack_from(member.user_data)[0]
    return generation


def withhold_claimed(
    members: Sequence[MemberSubscription],
    plan: Mapping[str, Iterable[TopicPartition]],
    counts: Mapping[str, int],
) -> dict[str, list[TopicPartition]]:
    """Take out of a plan each partition that another member may still be consuming, unless its owner keeps it.

    What a member may be consuming is what it says, in any generation. Its owner is the member with the newest claim; a
    partition that two members claim in the same generation has no owner, and both have to revoke it first. So does Java
    for members with equal subscriptions (`partitionsTransferringOwnership` in `AbstractStickyAssignor`); for others it
    compares with the claims of the new owner alone, and so lets two members consume a partition that both claim.
    """
    claimants: defaultdict[TopicPartition, set[str]] = defaultdict(set)
    for member in members:
        for tp in member.owned:
            claimants[tp].add(member.member_id)
    owners = find_owners(members, counts, claimed_partitions(members))
    owned = {(members[index].member_id, tp) for tp, index in owners.items()}
    return {
        member_id: [tp for tp in partitions if (member_id, tp) in owned or not claimants[tp] - {member_id}]
        for member_id, partitions in plan.items()
    }


def withheld_partitions(
    members: Iterable[MemberSubscription], assignment: Mapping[str, Assignment], counts: Mapping[str, int]
) -> frozenset[TopicPartition]:
    """Return the existing partitions that a member owns and no member is assigned: their owners have to join again."""
    owned = {tp for member in members for tp in member.owned if 0 <= tp.partition < counts.get(tp.topic, 0)}
    return frozenset(owned.difference(*(each.partitions for each in assignment.values())))
