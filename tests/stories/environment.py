"""The environment of a story: a cluster, a group's members, and the state of the group seen from members and broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

from asyncgroup import TopicPartition
from tests.stories.admin import Admin, DescribedGroup
from tests.stories.bell import Bell
from tests.stories.members import Member

__all__ = ["CONSUMER", "Environment", "Group"]

CONSUMER: Final[Mapping[str, Any]] = MappingProxyType(
    {"group_protocol": "consumer", "session_timeout": None, "heartbeat_interval": None}
)
"""The settings of a member with the consumer protocol; its timeouts are the group's."""


@dataclass(frozen=True)
class Group:
    """A settled group: members and coordinator agree on the generation, the leader and the assignment, by member name.

    In a group with the consumer protocol the generation is the group's epoch, and there is no leader.
    """

    generation: int
    leader: str | None
    assignment: dict[str, dict[str, list[int]]]


class Environment(ABC):
    """A cluster with one topic and one group. `limit` is the longest duration of a wait, in seconds of loop time."""

    limit: float
    session_timeout: float
    heartbeat_interval: float
    refresh_interval: float
    protocol: Mapping[str, Any] = MappingProxyType({})
    """The settings with which the members choose their group protocol; without any, the default one."""

    def __init__(self, bootstrap_servers: str, topic: str, group_id: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.group_id = group_id
        self.bell = Bell(self.describe)
        self.admin = Admin(bootstrap_servers)
        self.members: list[Member] = []
        self.produced: Counter[TopicPartition] = Counter()

    async def __aenter__(self) -> Self:
        await self.admin.cluster.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        problems: list[Exception] = []
        try:
            for member in self.members:
                try:
                    await member.leave()
                except Exception as problem:
                    problems.append(problem)
            await self._clean_up()
        finally:
            await self.admin.cluster.aclose()
        for problem in problems:
            raise problem

    async def _clean_up(self) -> None:  # noqa: B027  there may be nothing
        """Remove what the story has created; called after all members have left."""

    def describe(self) -> str:
        """Return the members' states, for the error of a failed wait."""
        return "\n".join(str(member.log) for member in self.members)

    @property
    def sessions_last(self) -> bool:
        """Whether a session lasts over rebalances."""
        return bool(self.protocol)

    @property
    def has_leader(self) -> bool:
        """Whether a member assigns the partitions; with the consumer protocol (KIP-848) the coordinator does."""
        return self.protocol.get("group_protocol") != "consumer"

    def leader(self, name: str) -> str | None:
        """Return the member that leads by the classic protocol."""
        return name if self.has_leader else None

    @property
    def first_generations(self) -> tuple[int, ...]:
        """The generations that a group can have with its first member.

        The coordinator of KIP-848 creates the group with epoch 1 and increases it for the member, and once more for the
        topics if it did not know them yet: a broker answers for a new topic before its coordinators know it.
        """
        return (1,) if self.has_leader else (2, 3)

    @property
    def generations_of_a_move(self) -> int:
        """The generations in which a partition moves to another member: cooperatively it is revoked in the first one."""
        return 2 if self.sessions_last and self.has_leader else 1

    def chapter(self, title: str, *, nodes: bool = False) -> None:  # noqa: B027  most environments see no requests
        """End a part of the story; an environment that sees requests records those of this part under the title."""

    def config(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the configuration of the member `name`."""
        return {
            "client_id": name,
            "auto_offset_reset": "earliest",
            "session_timeout": self.session_timeout,
            "heartbeat_interval": self.heartbeat_interval,
            "metadata_refresh_interval": self.refresh_interval,
            **self.protocol,
            **more,
        }

    # -- members -----------------------------------------------------------------------------------------------------

    async def member(
        self, name: str, topics: Iterable[str] | None = None, *, frail: bool = False, **config: Any
    ) -> Member:
        """Start a member; only a `frail` one can crash or be suspended."""
        member = self._make(name, self.config(name, **config), frail=frail)
        self.members.append(member)
        await member.start(list(topics or [self.topic]))
        return member

    @abstractmethod
    def _make(self, name: str, config: dict[str, Any], *, frail: bool) -> Member: ...

    @abstractmethod
    async def crash(self, member: Member) -> None:
        """End a frail member without LeaveGroup."""

    @abstractmethod
    async def suspend(self, member: Member) -> None:
        """Suspend a frail member; its connections stay open."""

    @abstractmethod
    async def resume(self, member: Member) -> None:
        """Resume a suspended member."""

    @abstractmethod
    async def kill_node(self, node_id: int) -> None:
        """Kill a broker."""

    # -- records -----------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int) -> str:
        """Create a topic and return its real name."""
        await self.admin.create_topic(name, partitions)
        return name

    async def produce(self, count: int, partitions: Iterable[int], topic: str | None = None) -> None:
        """Append `count` records to each of these partitions."""
        for partition in partitions:
            tp = TopicPartition(topic or self.topic, partition)
            first = self.produced[tp]
            values = [b"%s@%d" % (str(tp).encode(), number) for number in range(first, first + count)]
            end = await self.admin.produce(tp, values)
            # some records may be in the log twice; a recreated topic begins at 0 again
            self.produced[tp] = max(end, first + count)

    async def all_handled(self) -> None:
        """Wait until every produced record was handled by a member."""
        wanted = {(*tp, offset) for tp, count in self.produced.items() for offset in range(count)}

        def missing() -> set[tuple[str, int, int]]:
            return wanted.difference(*(member.log.handled for member in self.members))

        await self.bell.until(lambda: not missing(), f"all {len(wanted)} records handled", self.limit)

    async def all_committed(self) -> None:
        """Wait until the group has committed the end of every partition produced to."""

        found: dict[TopicPartition, int] = {}

        async def committed() -> bool:
            nonlocal found
            found = await self.committed()
            return found == dict(self.produced)

        try:
            await self.bell.until_known(committed, f"offsets committed: {dict(self.produced)}", self.limit)
        except AssertionError as error:
            error.add_note(f"committed are {found}")
            raise

    async def committed(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets of all partitions produced to."""
        return await self.admin.committed(self.group_id, self.produced)

    # -- the group ---------------------------------------------------------------------------------------------------

    async def settled(self, *members: Member) -> Group:
        """Wait until the group consists of exactly these members, all in active sessions of one generation.

        The coordinator's DescribeGroups response must match the members' own assignments. If sessions last over rebalances,
        all partitions must be assigned, too: between the generations of a move some have no owner.
        """
        names = ", ".join(member.name for member in members)
        group = await self.bell.until_known(
            lambda: self._agreed_state(members), f"group {self.group_id} settled with {names}", self.limit
        )
        assert group is not None
        return group

    async def _agreed_state(self, members: tuple[Member, ...]) -> Group | None:
        describe = self.admin.describe if self.has_leader else self.admin.describe_consumers
        described = await describe(self.group_id)
        if described is None or described.state != "Stable":
            return None
        if self.sessions_last and not await self._all_assigned(described):
            return None
        sessions = [
            member.session for member in members
        ]  # now, as the generation of a session that lasts changes
        generations = {session.generation for session in sessions if session}
        # a member of the consumer protocol reports its epoch only with a change of its partitions
        if None in sessions or (self.has_leader and len(generations) != 1):
            return None
        believed = {s.member_id: s.assignment for s in sessions if s is not None}
        if described.members != believed:
            return None
        by_name = {member.name: session for member, session in zip(members, sessions, strict=True) if session}
        leaders = [name for name, session in by_name.items() if session.is_leader]
        assert len(leaders) == self.has_leader, f"leaders: {leaders}"
        generation = generations.pop() if described.epoch is None else described.epoch
        assignment = {name: session.assignment for name, session in by_name.items()}
        return Group(generation, leaders[0] if leaders else None, assignment)

    async def _all_assigned(self, described: DescribedGroup) -> bool:
        """Whether all partitions of each assigned topic have an owner; a coordinator that assigned none does not know the topic yet."""
        owned = Counter[str]()
        for assignment in described.members.values():
            owned.update({topic: len(partitions) for topic, partitions in assignment.items()})
        topics = await self.admin.cluster.topics(list(owned))
        return bool(owned) and owned == {name: len(topic.partitions) for name, topic in topics.items()}
