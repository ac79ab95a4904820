"""Random programs of groups with the consumer protocol (KIP-848): heartbeats, leaves, commits with member epochs.

A program is defined by its seed. Where Kafka goes through a hash map the embedded broker does not imitate its order: which
member gets which free partition from the assignor `uniform`, and which of two assignors is taken if equally many members name
them. Programs leave that out: with `uniform` they have two members, and no program has both assignors.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from asyncgroup.wire import messages as m
from tests.interop.parity.scene import Scene

__all__ = ["ConsumerGroupProgram"]

NAMES: Final = ("ann", "bob", "cat", "dan")
KINDS: Final[tuple[tuple[int, tuple[str, ...], tuple[str | None, ...]], ...]] = (
    (7, NAMES, ("range",)),
    (8, ("ann", "cat"), ("range", None)),
    (8, ("ann", "cat"), ("uniform", None)),
)
"""Partitions, members and assignors of a program; its members are dynamic and static ones."""

INSTANCES: Final = {"cat": "desk-c", "dan": "desk-d"}
"""The instance ids of the static members."""

Beat = m.ConsumerGroupHeartbeatRequest


@dataclass
class Entry:
    """A member as the program knows it from the responses."""

    name: str
    id: str
    epoch: int = 0
    former: list[int] = field(default_factory=list)
    """Its earlier epochs."""
    assigned: list[int] = field(default_factory=list)
    owned: list[int] = field(default_factory=list)


class ConsumerGroupProgram:
    """A random program, and its state from the responses so far."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.rng = random.Random(seed)
        self._count, self.names, self.assignors = self.rng.choice(KINDS)
        self.members = {name: Entry(name, name) for name in self.names}
        self._asked = 0
        self._group = self._topic = ""

    async def run(self, steps: int) -> None:
        """Run `steps` random steps, then let the group settle."""
        self._topic = await self.scene.topic("program", self._count)
        self._group = await self.scene.consumer_group("program")
        kinds = [step for step, weight in self._steps() for _ in range(weight)]
        for _ in range(steps):
            await self.rng.choice(kinds)(self.members[self.rng.choice(self.names)])
        await self._settle()

    def _steps(self) -> list[tuple[Callable[[Entry], Awaitable[None]], int]]:
        return [
            (self._join, 5),
            (self._keep_alive, 4),
            (self._acknowledge, 9),
            (self._acknowledge_part, 3),
            (self._full, 2),
            (self._wrong_epoch, 3),
            (self._leave, 1),
            (self._leave_for_a_while, 1),
            (self._return_with_another_id, 1),
            (self._commit, 5),
            (self._fetch, 2),
            (self._describe, 2),
        ]

    async def _settle(self) -> None:
        """Let every member acknowledge what it has until nothing changes; then compare the whole group."""
        for turn in range(8):
            for member in self.members.values():
                if member.epoch > 0:
                    await self._acknowledge(member)
                elif not turn:
                    await self._join(member)
        await self._describe(self.members["ann"])
        owned = [number for member in self.members.values() for number in member.assigned]
        assert sorted(owned) == list(range(self._count)), owned

    # -- heartbeats ------------------------------------------------------------------------------------------------

    def _owned(self, numbers: list[int]) -> list[Beat.TopicPartitions]:
        return [Beat.TopicPartitions(self.scene.topic_ids[self._topic], numbers)] if numbers else []

    async def _beat(self, label: str, member: Entry, epoch: int, **fields: Any) -> None:
        self._asked += 1
        if member.name in INSTANCES:
            fields.setdefault("instance_id", INSTANCES[member.name])
        request = Beat(self._group, member.id, epoch, **fields)
        answer = await self.scene.ask(f"{self._asked} {member.name} {label} in {epoch}", request)
        if answer.error_code:
            if epoch == member.epoch:  # it would give up everything and join again
                member.epoch, member.assigned, member.owned = 0, [], []
            return
        if answer.member_epoch <= 0:
            member.epoch, member.assigned, member.owned = 0, [], []
            return
        if answer.member_epoch != member.epoch:
            member.former.append(member.epoch)
        member.epoch = answer.member_epoch
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            member.assigned = sorted(number for topic in topics for number in topic.partitions)

    async def _join(self, member: Entry) -> None:
        full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": [self._topic]}
        full["server_assignor"] = self.rng.choice(self.assignors)
        member.owned = []
        await self._beat("joins", member, 0, topic_partitions=[], **full)

    async def _keep_alive(self, member: Entry) -> None:
        await self._beat("is alive", member, member.epoch or 1)

    async def _acknowledge(self, member: Entry) -> None:
        if member.epoch:
            member.owned = list(member.assigned)
            await self._beat("owns all", member, member.epoch, topic_partitions=self._owned(member.owned))

    async def _acknowledge_part(self, member: Entry) -> None:
        """Report a part of what is owned and assigned: the rest may have been revoked, or is not there yet."""
        known = sorted({*member.assigned, *member.owned})
        part = sorted(self.rng.sample(known, self.rng.randint(0, len(known))))
        member.owned = part
        await self._beat("owns some", member, member.epoch or 1, topic_partitions=self._owned(part))

    async def _full(self, member: Entry) -> None:
        fields = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": [self._topic]}
        owned = self._owned(member.owned)
        await self._beat("sends all", member, member.epoch or 1, topic_partitions=owned, **fields)

    async def _wrong_epoch(self, member: Entry) -> None:
        epoch = self.rng.choice([member.epoch + 1, max(1, member.epoch - 1), self._former(member), 99])
        fields = {} if self.rng.random() < 0.5 else {"topic_partitions": self._owned(member.owned)}
        await self._beat("is late", member, epoch, **fields)

    def _former(self, member: Entry) -> int:
        return max(1, member.former[-1]) if member.former else 1

    async def _leave(self, member: Entry) -> None:
        await self._beat("leaves", member, -1)

    async def _leave_for_a_while(self, member: Entry) -> None:
        await self._beat("leaves for a while", member, -2)

    async def _return_with_another_id(self, member: Entry) -> None:
        """As a static member does after a restart; with a dynamic one another member joins."""
        if member.name in INSTANCES:
            await self._beat("leaves for a while", member, -2)
            member.id = f"{member.name}-{self._asked}"
            await self._join(member)

    # -- offsets ---------------------------------------------------------------------------------------------------

    def _epoch(self, member: Entry) -> int:
        former = self._former(member)
        return self.rng.choices([member.epoch, former, member.epoch + 1, -1], [60, 25, 10, 5])[0]

    async def _commit(self, member: Entry) -> None:
        cls = m.OffsetCommitRequest
        index = self.rng.choice(member.assigned or member.owned or [0])
        topics = [
            cls.OffsetCommitRequestTopic(self._topic, partitions=[cls.OffsetCommitRequestPartition(index, 5)])
        ]
        epoch = self._epoch(member)
        self._asked += 1
        label = f"{self._asked} {member.name} commits in {epoch}"
        answer = await self.scene.ask(label, cls(self._group, epoch, member.id, topics=topics), version=9)
        assert len(answer.topics) == 1

    async def _fetch(self, member: Entry) -> None:
        """Ask for offsets of a member; their places are those of each broker's own assignment, so only the error counts."""
        cls = m.OffsetFetchRequest
        epoch = self._epoch(member)
        group = cls.OffsetFetchRequestGroup(
            self._group, member.id, epoch, [cls.OffsetFetchRequestTopics(self._topic, partition_indexes=[])]
        )
        self._asked += 1
        await self.scene.ask(
            f"{self._asked} {member.name} fetches in {epoch}", cls(groups=[group]), version=9
        )

    async def _describe(self, _member: Entry) -> None:
        self._asked += 1
        await self.scene.ask(f"{self._asked} describe", m.ConsumerGroupDescribeRequest([self._group], True))
