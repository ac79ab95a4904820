"""Checks of an assignment that an assignor has made, before the leader sends it to the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from asyncgroup.errors import AssignmentError
from asyncgroup.group.assignors.protocol import Assignment, GroupAssignment, MemberSubscription
from asyncgroup.model import TopicPartition

__all__ = ["check_assignment", "check_cooperative"]


def check_assignment(
    name: str,
    group_assignment: GroupAssignment,
    members: Iterable[MemberSubscription],
    counts: Mapping[str, int],
) -> dict[str, Assignment]:
    """Return an Assignment for every member, with sorted partitions without repeats.

    A partition may be assigned to several members. Raises AssignmentError for unknown members, topics and partitions.
    """
    whole = {member.member_id: Assignment() for member in members}
    problems: list[str] = []
    if not isinstance(group_assignment, Mapping):
        raise AssignmentError(
            f"assignor {name!r} returned {group_assignment!r}; allowed is a mapping by member id"
        )
    for member_id, given in group_assignment.items():
        user_data = given.user_data if isinstance(given, Assignment) else None
        partitions = _partitions(name, member_id, given)
        if member_id not in whole:
            problems.append(f"{member_id!r} is not a member")
        problems += [
            f"topic {topic!r} does not exist, or no member subscribes to it"
            for topic in sorted({tp.topic for tp in partitions} - set(counts))
        ]
        problems += [
            f"{tp} does not exist: the topic has {counts[tp.topic]} partitions"
            for tp in partitions
            if tp.topic in counts and not 0 <= tp.partition < counts[tp.topic]
        ]
        whole[member_id] = Assignment(tuple(partitions), user_data)
    if problems:
        raise AssignmentError(
            f"assignor {name!r} made an invalid assignment: {'; '.join(dict.fromkeys(problems))}"
        )
    return whole


def _partitions(
    name: str, member_id: str, given: Iterable[TopicPartition] | Assignment
) -> list[TopicPartition]:
    """Return one member's partitions, sorted without repeats. Raises AssignmentError for other types."""
    wanted = given.partitions if isinstance(given, Assignment) else given
    try:
        found = {TopicPartition(*tp) for tp in wanted}
        if all(type(tp.topic) is str and type(tp.partition) is int for tp in found):
            return sorted(found)
    except TypeError:
        pass
    raise AssignmentError(
        f"assignor {name!r} returned {given!r} for member {member_id!r}; allowed is an iterable of TopicPartition "
        "or an Assignment"
    )


def check_cooperative(
    name: str, assignment: Mapping[str, Assignment], members: Iterable[MemberSubscription]
) -> None:
    """Raise AssignmentError if a partition moves from a member that owns it directly to another one.

    Its owner is still consuming it (`validateCooperativeAssignment` in Java's `ConsumerCoordinator`). Not for
    `CooperativeStickyAssignor`, which compares the generations of the owned partitions.
    """
    added: set[TopicPartition] = set()
    revoked: set[TopicPartition] = set()
    for member in members:
        assigned, owned = set(assignment[member.member_id].partitions), set(member.owned)
        added |= assigned - owned
        revoked |= owned - assigned
    if moved := sorted(added & revoked):
        raise AssignmentError(
            f"assignor {name!r} made an invalid assignment: {', '.join(map(str, moved))} would move to another member in "
            "one rebalance, while the owner consumes it; a cooperative assignor assigns it to no member first"
        )
