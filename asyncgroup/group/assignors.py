"""Assignors: who gets which partitions. Deterministic, partitions in numeric order, plans equal to Java's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Protocol, runtime_checkable

from asyncgroup.errors import ConfigError
from asyncgroup.model import TopicPartition

__all__ = ["Assignor", "MemberSubscription", "RangeAssignor", "RoundRobinAssignor", "resolve_assignors"]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member of the group asks for."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = field(default=())

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id; then the others by member id (`AbstractPartitionAssignor.MemberInfo`).

        So a static member keeps its place, and its partitions, across restarts.
        """
        return self.group_instance_id is None, self.group_instance_id or self.member_id


@runtime_checkable
class Assignor(Protocol):
    """Makes a plan for a group; `name` is what members agree on and must be the same in all of them."""

    @property
    def name(self) -> str: ...

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Partitions by member id; `counts` holds the number of partitions of each topic that exists."""
        ...


class RangeAssignor:
    """Consecutive ranges of each topic, so that equal numbers of different topics meet in one member.

    Of 4 partitions over 3 members the first gets two (`RangeAssignor.java`).
    """

    name = "range"

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        takers: dict[str, list[str]] = {topic: [] for topic in sorted(counts)}
        for member in sorted(members, key=lambda m: m.order):
            for topic in set(member.topics).intersection(counts):
                takers[topic].append(member.member_id)
        for topic, member_ids in takers.items():
            start = 0
            for index, member_id in enumerate(member_ids):
                size = counts[topic] // len(member_ids) + (index < counts[topic] % len(member_ids))
                plan[member_id] += [TopicPartition(topic, p) for p in range(start, start + size)]
                start += size
        return plan


class RoundRobinAssignor:
    """All partitions of all topics dealt out one by one to the members that subscribe (`RoundRobinAssignor.java`)."""

    name = "roundrobin"

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        ordered = [(m.member_id, frozenset(m.topics)) for m in sorted(members, key=lambda m: m.order)]
        circle = cycle(ordered)
        for topic in sorted({topic for _, topics in ordered for topic in topics if topic in counts}):
            for partition in range(counts[topic]):
                # some member subscribes, so one round is enough to come to it
                taker = next(member_id for member_id, topics in circle if topic in topics)
                plan[taker].append(TopicPartition(topic, partition))
        return plan


_BY_NAME: dict[str, type[RangeAssignor | RoundRobinAssignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
}


def resolve_assignors(wanted: Iterable[object]) -> list[Assignor]:
    """Assignor objects for names and objects, in order; raises ConfigError for anything else or a name given twice."""
    found: list[Assignor] = []
    for item in wanted:
        if isinstance(item, str) and item in _BY_NAME:
            assignor: Assignor = _BY_NAME[item]()
        elif not isinstance(item, (str, type)) and isinstance(item, Assignor):
            assignor = item
        else:
            allowed = f"{', '.join(_BY_NAME)}, or an object with `name` and `assign(members, counts)`"
            raise ConfigError("assignors", item, allowed)
        if assignor.name in [other.name for other in found]:
            raise ConfigError("assignors", assignor.name, "each name once")
        found.append(assignor)
    return found
