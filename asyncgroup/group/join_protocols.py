"""What a member's assignors say to the group's leader, and what they hear: user data out and in, and the plan."""

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
    """The assignors of one member, in order of preference, with the user data that is kept between its joins.

    User data that came with an assignment goes with the next joins, until an assignment comes without; then the
    configured one goes again (sarama's `userData`). Empty bytes count as none: other clients' leaders send them.
    """

    def __init__(self, group_id: str, assignors: Iterable[Assignor], user_data: bytes | None) -> None:
        self._group_id, self._configured = group_id, user_data
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._kept = user_data

    @property
    def names(self) -> list[str]:
        """The assignors' names, the preferred one first."""
        return list(self._assignors)

    def subscription_user_data(self, topics: Sequence[str]) -> dict[str, bytes | None]:
        """What each assignor says at a join for these topics, by its name, the preferred one first."""
        return {name: self._user_data_of(assignor, topics) for name, assignor in self._assignors.items()}

    def _user_data_of(self, assignor: Assignor, topics: Sequence[str]) -> bytes | None:
        if not isinstance(assignor, ProvidesUserData):
            return self._kept
        try:
            return assignor.subscription_user_data(list(topics))
        except Exception:  # noqa: BLE001  anything at all; it is logged
            _log.exception(
                "group %s: assignor %s has no user data; joining with the configured one",
                self._group_id,
                assignor.name,
            )
            return self._configured

    def assign(
        self, protocol: str, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, Assignment]:
        """The leader's work: the plan of the assignor that the group has chosen. Raises AssignmentError."""
        assignor = self._assignors.get(protocol)
        if assignor is None:
            raise AssignmentError(
                f"group {self._group_id!r} chose the protocol {protocol!r}; this member offered {self.names}"
            )
        existing = {topic: count for topic, count in counts.items() if count}
        return check_assignment(protocol, assignor.assign(members, existing), members, existing)

    def on_assignment(self, protocol: str, assignment: Assignment, generation_id: int) -> None:
        """A SyncGroup brought this assignment."""
        self._kept = assignment.user_data or self._configured
        if protocol in self._assignors:
            self._notify(self._assignors[protocol], assignment, generation_id)

    def _notify(self, assignor: Assignor, assignment: Assignment, generation_id: int) -> None:
        if not isinstance(assignor, SeesAssignment):
            return
        try:
            assignor.on_assignment(assignment, generation_id)
        except Exception:  # noqa: BLE001  anything at all; it is logged
            _log.exception(
                "group %s: on_assignment of assignor %s failed; the assignment stands",
                self._group_id,
                assignor.name,
            )


def check_assignment(
    name: str, plan: GroupAssignment, members: Iterable[MemberSubscription], counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """A plan in full: an assignment for every member, its partitions sorted, each once.

    A partition may be several members'. Raises AssignmentError for members, topics and partitions that don't exist.
    """
    whole = {member.member_id: Assignment() for member in members}
    problems: list[str] = []
    if not isinstance(plan, Mapping):
        raise AssignmentError(
            f"assignor {name!r} gave {plan!r} as its plan; a mapping by member id is wanted"
        )
    for member_id, given in plan.items():
        user_data = given.user_data if isinstance(given, Assignment) else None
        partitions = _partitions(name, member_id, given)
        if member_id not in whole:
            problems.append(f"{member_id!r}, who is no member")
        problems += [
            f"topic {topic!r}, which no member asks for or which does not exist"
            for topic in sorted({tp.topic for tp in partitions} - set(counts))
        ]
        problems += [
            f"{tp}, of a topic with {counts[tp.topic]} partitions"
            for tp in partitions
            if tp.topic in counts and not 0 <= tp.partition < counts[tp.topic]
        ]
        whole[member_id] = Assignment(tuple(partitions), user_data)
    if problems:
        raise AssignmentError(f"assignor {name!r} made a plan with {'; '.join(dict.fromkeys(problems))}")
    return whole


def _partitions(
    name: str, member_id: str, given: Iterable[TopicPartition] | Assignment
) -> list[TopicPartition]:
    """What one member is given, sorted, each once. Raises AssignmentError for anything but topics with numbers."""
    wanted = given.partitions if isinstance(given, Assignment) else given
    try:
        found = {TopicPartition(*tp) for tp in wanted}
        if all(type(tp.topic) is str and type(tp.partition) is int for tp in found):
            return sorted(found)
    except TypeError:
        pass
    raise AssignmentError(
        f"assignor {name!r} gave {member_id!r} {given!r}; a list of TopicPartition or an Assignment is wanted"
    )
