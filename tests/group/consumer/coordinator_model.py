"""A small model of a KIP-848 coordinator, and members of it whose messages are lost or late (no I/O, no time).

The coordinator follows Kafka's `CurrentAssignmentBuilder`: a member first gives up what is not in its target, which it
acknowledges by a list without those partitions; a list that is null changes nothing; then its epoch rises, and it gets those
partitions of its target that no other member still has.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from asyncgroup import ErrorCode
from asyncgroup.group.consumer.heartbeat_errors import RESULTS
from asyncgroup.group.consumer.member_state import ConsumerMemberState, Reconciliation, TopicIdPartition
from asyncgroup.group.membership import HeartbeatResult
from asyncgroup.wire import messages as m

__all__ = ["TOPIC", "Coordinator", "ModelMember", "World"]

TOPIC = UUID(int=0xAA)
NAMES = {TOPIC: "aa"}
Partitions = set[TopicIdPartition]


@dataclass
class Entry:
    """A member as the coordinator has it."""

    epoch: int
    previous: int = -1
    assigned: Partitions = field(default_factory=set)
    revoking: Partitions = field(default_factory=set)


class Coordinator:
    """The coordinator of a group with `count` partitions."""

    def __init__(self, count: int) -> None:
        self.all = [(TOPIC, number) for number in range(count)]
        self.epoch = 0
        self.members: dict[str, Entry] = {}
        self.target: dict[str, Partitions] = {}

    def heartbeat(self, request: m.ConsumerGroupHeartbeatRequest) -> m.ConsumerGroupHeartbeatResponse:
        """Answer one heartbeat."""
        if request.member_epoch < 0:
            self.remove(request.member_id)
            return m.ConsumerGroupHeartbeatResponse(member_epoch=request.member_epoch)
        owned = _owned(request)
        entry = self.members.get(request.member_id)
        if entry is None:
            if request.member_epoch > 0:
                return m.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            entry = self.members[request.member_id] = Entry(0)
            self.rebalance()
        elif request.member_epoch not in (0, entry.epoch) and not (
            request.member_epoch == entry.previous
            and owned is not None
            and owned <= entry.assigned | entry.revoking
        ):
            return m.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
        if request.member_epoch == 0:
            assert owned == set(), "a join owns nothing"
        before = set(entry.assigned)
        self.reconcile(request.member_id, entry, owned)
        is_full = request.member_epoch == 0 or (
            request.rebalance_timeout_ms > 0
            and request.subscribed_topic_names is not None
            and owned is not None
        )
        assignment = None
        if is_full or entry.assigned != before:
            numbers = sorted(number for _, number in entry.assigned)
            topic = m.ConsumerGroupHeartbeatResponse.TopicPartitions(TOPIC, numbers)
            assignment = m.ConsumerGroupHeartbeatResponse.Assignment([topic] if numbers else [])
        return m.ConsumerGroupHeartbeatResponse(
            member_epoch=entry.epoch, heartbeat_interval_ms=5000, assignment=assignment
        )

    def reconcile(self, member_id: str, entry: Entry, owned: Partitions | None) -> None:
        """Bring a member nearer to its target."""
        if entry.revoking and (owned is None or owned & entry.revoking):
            return
        entry.revoking = set()
        target = self.target[member_id]
        if entry.assigned - target:
            entry.revoking = entry.assigned - target
            entry.assigned &= target
            # what the member does not have at all is revoked already
            if owned is not None and not owned & entry.revoking:
                entry.revoking = set()
            else:
                return
        if entry.epoch != self.epoch:
            entry.previous, entry.epoch = entry.epoch, self.epoch
        taken = {
            tp
            for other, each in self.members.items()
            if other != member_id
            for tp in each.assigned | each.revoking
        }
        entry.assigned |= target - taken

    def rebalance(self) -> None:
        """Make a new target: round robin over the members."""
        self.epoch += 1
        names = sorted(self.members)
        self.target = {name: set(self.all[index :: len(names)]) for index, name in enumerate(names)}

    def remove(self, member_id: str) -> None:
        """Remove a member: it left, or its session expired."""
        if self.members.pop(member_id, None) is not None:
            self.rebalance()


def _owned(request: m.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return {(entry.topic_id, number) for entry in request.topic_partitions for number in entry.partitions}


class ModelMember:
    """A member whose assignments are applied in two steps: what it loses ends, later that is complete."""

    def __init__(self, make_state: Callable[..., ConsumerMemberState], make_id: Callable[[], UUID]) -> None:
        self.state = make_state("g", rebalance_timeout=60.0, make_id=make_id)
        self.state.begin(["aa"])
        self.used: Partitions = set()
        self.step: Reconciliation | None = None

    def begin_reconciliation(self) -> None:
        """Begin to apply the newest assignment."""
        if self.step is None:
            self.step = self.state.begin_reconciliation(NAMES)

    def finish_reconciliation(self) -> None:
        """Complete the revocation: only now its partitions are no longer used."""
        step, self.step = self.step, None
        if step is not None and step.identity.member_id == self.state.identity.member_id:
            self.state.reconciled(step)
            self.used = set(step.owned)

    def on_refusal(self, code: int) -> None:
        """Give up all partitions if the membership is lost."""
        if RESULTS[self.state.on_error(code)] is HeartbeatResult.LOST:
            self.used, self.step = set(), None


class World:
    """Members, their coordinator, and a random order of what happens."""

    def __init__(
        self, seed: int, make_state: Callable[..., ConsumerMemberState] = ConsumerMemberState
    ) -> None:
        self.rng = random.Random(seed)
        self.make_state = make_state
        self.coordinator = Coordinator(self.rng.randint(1, 6))
        self.members: list[ModelMember] = []
        self.join()

    def join(self) -> None:
        """Add a member."""
        self.members.append(ModelMember(self.make_state, lambda: UUID(int=self.rng.getrandbits(128))))

    def run(self, steps: int) -> None:
        """Make this many random steps, each with all checks; then let the group settle without losses."""
        for _ in range(steps):
            self.turn()
            self.check()
        for _ in range(12):
            for member in self.members:
                self.beat(member)
                member.begin_reconciliation()
                member.finish_reconciliation()
                self.check()
        used = [tp for member in self.members for tp in member.used]
        assert sorted(used) == self.coordinator.all, "each partition has one owner"

    def turn(self) -> None:
        member = self.rng.choice(self.members)
        kind = self.rng.choices(
            [
                "beat",
                "lost request",
                "lost response",
                "begin",
                "finish",
                "join",
                "leave",
                "expire",
                "session",
            ],
            [40, 5, 8, 15, 15, 3, 2, 3, 2],
        )[0]
        if kind == "beat":
            self.beat(member)
        elif kind == "lost request":
            member.state.next_request()
            member.state.on_lost_response()
        elif kind == "lost response":
            self.coordinator.heartbeat(member.state.next_request())
            member.state.on_lost_response()
        elif kind == "begin":
            member.begin_reconciliation()
        elif kind == "finish":
            member.finish_reconciliation()
        elif kind == "join" and len(self.members) < 5:
            self.join()
        elif kind == "leave" and len(self.members) > 1:
            member.used = set()
            self.coordinator.heartbeat(member.state.leave_request(is_static_leave=False))
            self.members.remove(member)
        elif kind == "expire":
            self.coordinator.remove(member.state.member_id)
        elif kind == "session":
            member.used, member.step = set(), None
            member.state.begin(["aa"])

    def beat(self, member: ModelMember) -> None:
        response = self.coordinator.heartbeat(member.state.next_request())
        if response.error_code:
            member.on_refusal(response.error_code)
        else:
            member.state.on_response(response)

    def check(self) -> None:
        """No two members whose commits would be accepted use a partition."""
        users: dict[TopicIdPartition, str] = {}
        for member in self.members:
            entry = self.coordinator.members.get(member.state.member_id)
            if entry is None or member.state.epoch not in (entry.epoch, entry.previous):
                continue
            for tp in member.used:
                assert tp not in users, (tp, users[tp], member.state.member_id)
                users[tp] = member.state.member_id
