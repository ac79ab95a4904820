"""Consumer groups without a broker: members that heartbeat as clients do, driven step by step by a test."""

from __future__ import annotations

from uuid import UUID

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.broker.groups.consumer.heartbeat import HeartbeatContext, heartbeat, leave
from asyncgroup.broker.groups.consumer.heartbeat_messages import MemberHeartbeat, MemberHeartbeatResult
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.consumer.topics import FixedTopics, TopicFacts
from asyncgroup.error_codes import ErrorCode

IDS = {name: UUID(int=number) for number, name in enumerate("abc", 1)}


def topics_of(**partitions: int) -> FixedTopics:
    return FixedTopics({name: TopicFacts(IDS[name], count) for name, count in partitions.items()})


def parts(name: str, *indexes: int) -> frozenset[TopicIdPartition]:
    return frozenset(TopicIdPartition(IDS[name], index) for index in indexes)


class Member:
    """A client's side: its epoch, what it owns, and what it was assigned but has not acted on yet."""

    def __init__(self, member_id: str, topics: frozenset[str], **fields: object) -> None:
        self.id = member_id
        self.topics = topics
        self.fields = fields
        self.epoch = 0
        self.owned: frozenset[TopicIdPartition] = frozenset()
        self.assigned: frozenset[TopicIdPartition] = frozenset()

    def request(self, *, full: bool) -> MemberHeartbeat:
        given = full or self.epoch == 0
        return MemberHeartbeat(
            group_id="g",
            member_id=self.id,
            member_epoch=self.epoch,
            owned=self.owned,
            topics=self.topics if given else None,
            rebalance_timeout=30.0 if given else None,
            **self.fields,
        )

    def receive(self, result: MemberHeartbeatResult) -> None:
        self.epoch = result.member_epoch
        if result.assignment is not None:
            self.assigned = result.assignment

    def revoke(self) -> None:
        """Give up what is no longer assigned; partitions that were added are taken at once."""
        self.owned = self.assigned

    def rejoin(self) -> None:
        self.epoch, self.owned, self.assigned = 0, frozenset(), frozenset()


class Driver:
    """A group and its members; `lose` drops a response after the group has changed."""

    def __init__(self, topics: FixedTopics, **context: object) -> None:
        self.topics = topics
        self.context = context
        self.now = 1_000_000
        self.group = ModernGroup(group_id="g")
        self.members: list[Member] = []

    def beat(self, member: Member, *, full: bool = False, lose: bool = False) -> ErrorCode:
        context = HeartbeatContext(topics=self.topics, now=self.now, **self.context)
        try:
            step = heartbeat(self.group, member.request(full=full), context)
        except Refused as error:
            return error.code
        self.group = step.group
        if not lose:
            member.receive(step.result)
        return ErrorCode.NONE

    def join(self, member_id: str, *topics: str, **fields: object) -> Member:
        member = Member(member_id, frozenset(topics), **fields)
        assert self.beat(member) is ErrorCode.NONE
        self.members.append(member)
        return member

    def leave(self, member: Member, epoch: int = -1) -> ErrorCode:
        request = MemberHeartbeat(group_id="g", member_id=member.id, member_epoch=epoch, **member.fields)
        try:
            self.group = leave(self.group, request, self.topics).group
        except Refused as error:
            return error.code
        return ErrorCode.NONE

    def settle(self, rounds: int = 30) -> None:
        """Let all members heartbeat and act on the responses until nothing changes."""
        for _ in range(rounds):
            before = self.group
            self.now += 5000
            for member in self.members:
                if self.beat(member, full=True) is not ErrorCode.NONE:
                    member.rejoin()
                    assert self.beat(member) is ErrorCode.NONE
                member.revoke()
            if self.group is before:
                return
        raise AssertionError(f"the group does not settle: {self.group}")
