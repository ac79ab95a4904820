"""The protocols that a member offers in JoinGroup: its assignors, their user data, and the leader's assignment."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from asyncgroup.errors import AssignmentError
from asyncgroup.group.assignors import (
    Assignment,
    Assignor,
    GroupAssignment,
    MemberSubscription,
    ProvidesUserData,
    SeesAssignment,
)
from asyncgroup.model import TopicPartition

__all__ = ["JoinProtocols", "check_assignment"]

_log = logging.getLogger("asyncgroup.group")


class JoinProtocols:
    """The assignors of one member in order of preference, and the user data for its next join.

    User data of an assignment is sent with the next joins until an assignment has none; then the configured one is sent
    again (sarama's `userData`). Empty bytes count as none, since leaders of other clients send them.
    """

    def __init__(self, group_id: str, assignors: Iterable[Assignor], user_data: bytes | None) -> None:
        self._group_id = group_id
        self._configured = user_data
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._kept = user_data  # for assignors without subscription_user_data

    @property
    def names(self) -> list[str]:
        """The names of the assignors, the preferred one first."""
        return list(self._assignors)

    def subscription_user_data(self, topics: Sequence[str]) -> dict[str, bytes | None]:
        """Return the user data of each assignor for a join with these topics, by name, the preferred one first."""
        return {name: self._user_data_of(assignor, topics) for name, assignor in self._assignors.items()}

    def _user_data_of(self, assignor: Assignor, topics: Sequence[str]) -> bytes | None:
        if not isinstance(assignor, ProvidesUserData):
            return self._kept
        try:
            return assignor.subscription_user_data(list(topics))
        except Exception:  # noqa: BLE001  user code; it is logged
            _log.exception(
                "group %s: subscription_user_data of assignor %s failed; sending the configured user data",
                self._group_id,
                assignor.name,
            )
            return self._configured

    def assign(
        self, protocol: str, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, Assignment]:
        """As the leader: assign with the assignor that the group chose. Raises AssignmentError."""
        assignor = self._assignors.get(protocol)
        if assignor is None:
            raise AssignmentError(
                f"group {self._group_id!r} chose the protocol {protocol!r}; this member offered {self.names}"
            )
        existing = {topic: count for topic, count in counts.items() if count}
        return check_assignment(protocol, assignor.assign(members, existing), members, existing)

    def on_assignment(self, protocol: str, assignment: Assignment, generation_id: int) -> None:
        """Keep the user data of an assignment, and pass the assignment to the chosen assignor."""
        self._kept = assignment.user_data or self._configured
        if protocol in self._assignors:
            self._notify(self._assignors[protocol], assignment, generation_id)

    def _notify(self, assignor: Assignor, assignment: Assignment, generation_id: int) -> None:
        if not isinstance(assignor, SeesAssignment):
            return
        try:
            assignor.on_assignment(assignment, generation_id)
        except Exception:  # noqa: BLE001  user code; it is logged
            _log.exception(
                "group %s: on_assignment of assignor %s failed; the assignment is used all the same",
                self._group_id,
                assignor.name,
            )


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
