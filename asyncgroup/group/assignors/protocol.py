"""What an assignor has to be, what it may be besides, and what it speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from asyncgroup.model import TopicPartition

__all__ = [
    "Assignment",
    "Assignor",
    "GroupAssignment",
    "MemberSubscription",
    "PerGroup",
    "ProvidesUserData",
    "SeesAssignment",
]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member of the group asks for.

    `user_data`, `owned`, `generation_id` and `rack_id` are what the member itself said (ConsumerProtocolSubscription);
    members that speak an old version of it say less. `owned` is for cooperative rebalances (KIP-429), with the
    generation that it belongs to (KIP-792); -1 is none.
    """

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = field(default=())
    generation_id: int = -1
    rack_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id; then the others by member id (`AbstractPartitionAssignor.MemberInfo`).

        So a static member keeps its place, and its partitions, across restarts.
        """
        return self.group_instance_id is None, self.group_instance_id or self.member_id


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one member gets: partitions, and bytes for its assignor or its handler (`session.assignment_user_data`)."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


GroupAssignment: TypeAlias = Mapping[str, "Iterable[TopicPartition] | Assignment"]
"""By member id: its partitions, or an Assignment where user data goes with them."""


@runtime_checkable
class Assignor(Protocol):
    """Makes a plan for a group; `name` is what members agree on and must be the same in all of them.

    Only the group's leader plans, in one go on the event loop: for a group of hundreds of members, or with an assignor
    that calculates long, its heartbeats and handlers wait meanwhile, so it has to stay well below `session_timeout`.
    Where members offer several assignors the coordinator chooses one that all of them
    have, by their order of preference. An example, to be given as `ConsumerConfig(assignors=(LeastLoaded(),))`:

        class LeastLoaded:
            name = "least-loaded"

            def subscription_user_data(self, topics):                 # optional: before each join, in every member
                return b"%d" % os.getloadavg()[0]

            def assign(self, members, counts):                        # in the leader
                calmest = min(members, key=lambda member: int(member.user_data or b"0"))
                everything = [TopicPartition(topic, p) for topic in counts for p in range(counts[topic])]
                return {calmest.member_id: Assignment(tuple(everything), user_data=b"you are the calmest")}

            def on_assignment(self, assignment, generation_id):       # optional: after each sync, in every member
                print(generation_id, assignment.partitions, assignment.user_data)

    The optional methods are those of ProvidesUserData, SeesAssignment and PerGroup. All are called on the event loop
    and must return promptly.

    An assignor may give one partition to several members on purpose (a standby, a replicated index). Each of them gets
    all its records, and each commits under the group's name: marks go only forwards within a member, but of what
    several members commit the last one wins, so that the committed offset may go back to that of a slower member.
    Whoever takes a copy over starts at the last commit. If that was a slower member's, records are seen again; if it was
    a faster one's, this copy leaves out what the slower one had not come to yet. Where that matters let one of them
    mark, the owner; the assignment's user data can say who that is.

    A plan with an unknown member, an unknown topic or a partition that does not exist is refused with AssignmentError.
    Partitions that nobody gets are nobody's; members that the plan leaves out get nothing.
    """

    @property
    def name(self) -> str:
        """What members agree on by JoinGroup's protocol names; of the group's members all must offer it."""
        ...

    def assign(self, members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> GroupAssignment:
        """Who gets what; `counts` holds the number of partitions of each topic that exists."""
        ...


@runtime_checkable
class ProvidesUserData(Protocol):
    """An assignor whose members have something to say to the leader (Java's `subscriptionUserData`)."""

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Bytes for `MemberSubscription.user_data`, asked for before each JoinGroup; None is none.

        An exception is logged, and `ConsumerConfig.user_data` goes instead. Assignors without this method send what
        the last assignment brought as its user data, or else `ConsumerConfig.user_data` (sarama's `userData`).
        """
        ...


@runtime_checkable
class SeesAssignment(Protocol):
    """An assignor whose members keep something of their assignments (Java's and sarama's `onAssignment`)."""

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Called after each SyncGroup that succeeded, with what the member got, if the group has chosen this assignor.

        The next `subscription_user_data` comes later. An exception is logged only: the assignment stands.
        """
        ...


@runtime_checkable
class PerGroup(Protocol):
    """An assignor with a state of its own in each member of each group (aiokafka #1175 had one for all)."""

    def for_group(self) -> Assignor:
        """The assignor for one more ConsumerGroup object, with a fresh state; called once for each.

        An object without this method is used as it is by every group that it is given to.
        """
        ...
