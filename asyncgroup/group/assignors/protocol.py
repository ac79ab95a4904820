"""The assignor protocol, its optional methods and data types, and the checks of what an assignor has made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from asyncgroup.errors import AssignmentError
from asyncgroup.model import TopicPartition

__all__ = [
    "Assignment",
    "Assignor",
    "Cooperates",
    "GroupAssignment",
    "MemberSubscription",
    "PerGroup",
    "ProvidesUserData",
    "RackAware",
    "SeesAssignment",
    "check_assignment",
    "check_cooperative",
]


def _make_hashable(value: object, *keys: str) -> None:
    """Replace lists by tuples in a frozen dataclass. Anything else is left to the check of the whole assignment."""
    for key in keys:
        if isinstance(given := getattr(value, key), list):
            object.__setattr__(value, key, tuple(given))


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription of a group member.

    `user_data`, `owned`, `generation_id` and `rack_id` come from the member's ConsumerProtocolSubscription; old
    versions of it lack some. `owned` are its owned partitions, for cooperative rebalances (KIP-429), with the
    generation in which it owned them (KIP-792); -1 is none.
    """

    member_id: str
    topics: Sequence[str]
    group_instance_id: str | None = None
    user_data: bytes | None = None
    owned: Sequence[TopicPartition] = ()
    generation_id: int = -1
    rack_id: str | None = None

    def __post_init__(self) -> None:
        _make_hashable(self, "topics", "owned")

    @property
    def order(self) -> tuple[bool, str]:
        """The sort key: static members first, by instance id, then the others by member id.

        As `AbstractPartitionAssignor.MemberInfo`, so that a static member keeps its partitions across restarts.
        """
        return self.group_instance_id is None, self.group_instance_id or self.member_id


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member's partitions, and user data for its assignor or handler (`session.assignment_user_data`)."""

    partitions: Sequence[TopicPartition] = ()
    user_data: bytes | None = None

    def __post_init__(self) -> None:
        _make_hashable(self, "partitions")


GroupAssignment: TypeAlias = Mapping[str, "Iterable[TopicPartition] | Assignment"]
"""By member id: its partitions, or an Assignment with user data."""


@runtime_checkable
class Assignor(Protocol):
    """Assigns the partitions of a group; all members must use the same `name` for it.

    Only the group leader assigns, in one synchronous call on the event loop. Its heartbeats and handlers are blocked
    for that time, so it must stay well below `session_timeout`, also for groups of hundreds of members. If members
    offer several assignors, the coordinator chooses one that all of them have, by their order of preference. An
    example, for `ConsumerConfig(assignors=[LeastLoaded()])`:

        class LeastLoaded:
            name = "least-loaded"

            def subscription_user_data(self, topics):                 # optional: before each join, in every member
                return b"%d" % os.getloadavg()[0]

            def assign(self, members, counts):                        # in the leader
                calmest = min(members, key=lambda member: int(member.user_data or b"0"))
                everything = [TopicPartition(topic, p) for topic in counts for p in range(counts[topic])]
                return {calmest.member_id: Assignment(everything, user_data=b"you are the calmest")}

            def on_assignment(self, assignment, generation_id):       # optional: after each sync, in every member
                print(generation_id, assignment.partitions, assignment.user_data)

    The optional methods are those of ProvidesUserData, SeesAssignment, RackAware and PerGroup. All are called on the event loop
    and must return promptly.

    An assignor may assign a partition to several members (a standby, a replicated index). Each of them gets all its
    records, and each commits for the group. Marks only move forwards within a member, but the last commit of any
    member wins, so the committed offset can move back to that of a slower member. A member that takes over a copy
    starts at the committed offset: after a slower member's commit, records are delivered again; after a faster one's,
    this copy skips what the slower one had not reached. Where that matters, let only one of them mark; the
    assignment's user data can say which.

    An assignment with an unknown member, an unknown topic or a partition that does not exist raises AssignmentError.
    Partitions may stay unassigned; members that are left out get none.
    """

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup, which all members must offer."""
        ...

    def assign(self, members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> GroupAssignment:
        """Assign the partitions; `counts` has the partition count of each existing topic."""
        ...


@runtime_checkable
class ProvidesUserData(Protocol):
    """An assignor whose members send user data to the leader (Java's `subscriptionUserData`)."""

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return the bytes of `MemberSubscription.user_data`, or None. Called before each JoinGroup.

        An exception is logged, and `ConsumerConfig.user_data` is sent instead. Assignors without this method send the
        user data of the last assignment, or else `ConsumerConfig.user_data` (sarama's `userData`).
        """
        ...


@runtime_checkable
class SeesAssignment(Protocol):
    """An assignor whose members receive their assignments (Java's and sarama's `onAssignment`)."""

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Called with the member's assignment after each successful SyncGroup, if the group chose this assignor.

        It is called before the next `subscription_user_data`. An exception is logged only: the assignment is used.
        """
        ...


@runtime_checkable
class Cooperates(Protocol):
    """An assignor whose members keep their claims while they join again (COOPERATIVE in Java's `supportedProtocols`).

    Its assignments must not have a partition that another member still owns (`MemberSubscription.owned`); that member is
    to revoke it first, and joins again when it has. An assignment that moves one at once raises AssignmentError.
    """

    is_cooperative: bool
    """Whether it keeps to that."""


@runtime_checkable
class RackAware(Protocol):
    """An assignor that can assign partitions to members in whose rack there is a replica (KIP-881)."""

    def assign_by_rack(
        self,
        members: Sequence[MemberSubscription],
        counts: Mapping[str, int],
        racks: Mapping[TopicPartition, frozenset[str]],
    ) -> GroupAssignment:
        """Assign the partitions as `assign`, with `ConsumerConfig.balance_by_rack`.

        `racks` has the racks of each partition's replicas, `MemberSubscription.rack_id` that of a member (`rack_id`).
        """
        ...


@runtime_checkable
class PerGroup(Protocol):
    """An assignor with separate state for each group object (in aiokafka #1175 all groups shared it)."""

    def for_group(self) -> Assignor:
        """Return an assignor with fresh state. Called once per ConsumerGroup object.

        An object without this method is shared by all groups that it is passed to.
        """
        ...


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
