"""Clients of both protocols in one group of a coordinator, driven step by step by a test.

Each knows what it owns, as a client does: it gives partitions up before it reports that it has, and takes others when it is
assigned them.
"""

from __future__ import annotations

from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.broker.groups.shared.requests import JoinResult, RequestMember, SyncResult
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned, encode_versioned
from tests.broker.groups.consumer_members import parts
from tests.broker.harness import GROUP, Harness

Subscription = m.ConsumerProtocolSubscription
Assignment = m.ConsumerProtocolAssignment
Owned = frozenset[TopicIdPartition]

NOTHING: Owned = frozenset()
_LOST = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
)


class Client:
    """What both kinds have in common. `id` is empty as long as a client with the classic protocol has none."""

    def __init__(self, driver: Harness, name: str, instance: str | None) -> None:
        self.driver = driver
        self.id = name
        self.instance = instance
        self.owned = NOTHING

    @property
    def assigned(self) -> Owned:
        """What it owns, or will own with its next step."""
        return self.owned

    def step(self) -> None:
        """Do what a client does next on its own."""
        raise NotImplementedError

    def lose(self, error: ErrorCode) -> None:
        """Give up everything at once: the coordinator has taken it away."""
        self.owned = NOTHING

    def leave(self) -> None:
        """Leave the group for good."""
        raise NotImplementedError


class ClassicClient(Client):
    """Eager or cooperative: the former gives everything up before it joins."""

    def __init__(self, driver: Harness, instance: str | None, *, cooperative: bool) -> None:
        super().__init__(driver, "", instance)
        self.cooperative = cooperative
        self.generation = -1
        self.must_join = True
        self.must_sync = False
        self.joined: JoinResult | None = None
        self.joins: list[JoinResult] | None = None
        self.syncs: list[SyncResult] | None = None

    @property
    def is_parked(self) -> bool:
        self.learn()
        return self.joins is not None or self.syncs is not None

    def step(self) -> None:
        if self.is_parked:
            return
        if self.must_join:
            self.join()
        elif self.must_sync:
            self.sync()
        else:
            self.heartbeat()

    def join(self) -> None:
        if not self.cooperative:
            self.owned = NOTHING
        indexes = sorted(tp.partition for tp in self.owned)
        places = [Subscription.TopicPartition("a", indexes)] if indexes else []
        metadata = encode_versioned(Subscription(["a"], None, places), 1)
        name = "cooperative-sticky" if self.cooperative else "range"
        self.joins = self.driver.join(
            self.id,
            group_instance_id=self.instance,
            protocols=((name, metadata),),
            session_timeout=10.0,
            rebalance_timeout=30.0,
        )
        self.learn()

    def sync(self) -> None:
        assert self.joined is not None
        self.syncs = self.driver.sync(
            self.id, self.plan(self.joined), generation=self.generation, group_instance_id=self.instance
        )
        self.learn()

    def heartbeat(self) -> None:
        member = RequestMember(self.id, self.generation, self.instance)
        error = self.driver.coordinator.heartbeat(GROUP, member)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.must_join = True
        elif error in _LOST:
            self.lose(error)

    def plan(self, joined: JoinResult) -> dict[str, bytes]:
        """Return the plan of a leader, which leaves out what another member has to give up first."""
        facts = self.driver.topics.find("a")
        assert facts is not None
        members = sorted(joined.members, key=lambda member: member.member_id)
        owner = {
            index: member.member_id
            for member in members
            for topic in decode_versioned(Subscription, member.metadata).owned_partitions
            for index in topic.partitions
        }
        shares: dict[str, list[int]] = {member.member_id: [] for member in members}
        for index in range(facts.partitions if members else 0):
            wanted = members[index % len(members)].member_id
            if owner.get(index, wanted) == wanted:
                shares[wanted].append(index)
        return {
            member_id: encode_versioned(Assignment([Assignment.TopicPartition("a", share)], None), 1)
            for member_id, share in shares.items()
        }

    def learn(self) -> None:
        """Act on the responses that have arrived."""
        if self.joins:
            (answer,), self.joins = self.joins, None
            self.on_join(answer)
        if self.syncs:
            (synced,), self.syncs = self.syncs, None
            self.on_sync(synced)

    def on_join(self, answer: JoinResult) -> None:
        if answer.error is ErrorCode.NONE:
            self.id, self.generation, self.joined = answer.member_id, answer.generation_id, answer
            self.must_join, self.must_sync = False, not answer.skip_assignment
        elif answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
        elif answer.error in _LOST:
            self.lose(answer.error)

    def on_sync(self, answer: SyncResult) -> None:
        if answer.error is ErrorCode.NONE:
            self.must_sync = False
            found = decode_versioned(Assignment, answer.assignment).assigned_partitions
            assigned = parts("a", *(index for topic in found for index in topic.partitions))
            self.must_join = self.cooperative and not self.owned <= assigned
            self.owned = assigned
        elif answer.error in _LOST:
            self.lose(answer.error)
        else:
            self.must_join = True

    def lose(self, error: ErrorCode) -> None:
        super().lose(error)
        self.must_join, self.must_sync, self.generation = True, False, -1
        if error is not ErrorCode.ILLEGAL_GENERATION:
            self.id = ""

    def leave(self) -> None:
        if self.id:
            self.driver.leave(self.id)


class ConsumerClient(Client):
    """It acts on what it was assigned with its next step; heartbeats before that report what it still owns."""

    def __init__(self, driver: Harness, name: str, instance: str | None) -> None:
        super().__init__(driver, name, instance)
        self.epoch = 0
        self.target = NOTHING

    @property
    def assigned(self) -> Owned:
        return self.target | self.owned

    def step(self) -> None:
        self.owned = self.target
        classic = self.driver.coordinator.groups.get(GROUP)
        if classic is None or not classic.members or classic.protocol_name is not None:
            self.beat()  # else a classic group is in its first rebalance, and a heartbeat fails, as with Kafka

    def beat(self) -> None:
        fields = {"owned": self.owned, "instance_id": self.instance}
        if self.epoch > 0:
            fields |= {"topics": frozenset("a"), "rebalance_timeout": 30.0}
        for answer in self.driver.beat(self.id, self.epoch, **fields):
            if answer.error is ErrorCode.NONE:
                self.epoch = answer.member_epoch
                if answer.assignment is not None:
                    self.target = answer.assignment
            elif answer.error in _LOST:
                self.lose(answer.error)

    def lose(self, error: ErrorCode) -> None:
        super().lose(error)
        self.epoch, self.target = 0, NOTHING

    def leave(self, epoch: int = -1) -> None:
        self.driver.beat(self.id, epoch, instance_id=self.instance)
