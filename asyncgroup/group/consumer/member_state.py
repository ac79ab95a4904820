"""ConsumerMemberState: what a member of a KIP-848 group knows, and what its next heartbeat carries. No I/O.

The member makes its own id, as ConsumerGroupHeartbeat version 1 requires. A heartbeat carries all fields after a join, an error
and a response that was lost; later ones carry only what has changed, since null means unchanged. The coordinator answers with an
assignment by topic ids: the member revokes what is not in it, reports the partitions that it still owns, and adds what is
new. The coordinator gives a revoked partition to its next owner only after that report, so it is made after the last commit.

Facts from Kafka's `AbstractMembershipManager`, `ConsumerMembershipManager` and `ConsumerHeartbeatRequestManager`, and from
KIP-848. That partitions of unknown topic ids are reported as owned, and that an empty list is always sent, is franz-go's
(`consumer_group_848.go`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from asyncgroup.errors import ErrorCode
from asyncgroup.group.consumer.heartbeat_errors import HeartbeatAction, heartbeat_action
from asyncgroup.group.liveness.heartbeat_snapshot import Partitions, TopicIdPartition, by_topic_id
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m

__all__ = [
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "STATIC_LEAVE_EPOCH",
    "ConsumerMemberState",
    "Reconciliation",
    "TopicIdPartition",
]

JOIN_EPOCH: Final = 0
"""The member epoch of a heartbeat that joins."""

LEAVE_EPOCH: Final = -1
"""The member epoch of a heartbeat that leaves for good."""

STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch of a static member that leaves and is expected back: its partitions wait for it."""

UNRELEASED_TRIES: Final = 3
"""How often a fenced static member tries to join while its instance id is not released yet."""

_NONE: Final[Partitions] = frozenset()


class Reconciliation(NamedTuple):
    """The next assignment to apply, with the epoch that it came with: a commit uses both or neither."""

    identity: MemberIdentity
    assignment: dict[str, list[int]]
    """Partition numbers by topic, sorted: those whose topic ids have a name."""
    owned: Partitions
    """What to report once it is applied: also the partitions of topic ids without a name, which wait for metadata."""
    unresolved: frozenset[UUID]
    """Topic ids without a name."""


class _Fields(NamedTuple):
    """The fields of a heartbeat that the coordinator keeps."""

    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    regex: str
    assignor: str | None
    owned: Partitions


class ConsumerMemberState:
    """A member's id, epoch, assignment and owned partitions, and which of these the coordinator has received.

    One heartbeat is in flight at a time: `next_request` is followed by `on_response`, `on_error` or `on_lost_response`.
    `rebalance_timeout` is in seconds.
    """

    def __init__(
        self,
        group_id: str,
        *,
        rebalance_timeout: float,
        group_instance_id: str | None = None,
        rack_id: str = "",
        assignor: str | None = None,
        make_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self.group_id = group_id
        self.group_instance_id = group_instance_id
        self._rack_id = rack_id or None
        self._rebalance_timeout_ms = int(rebalance_timeout * 1000)
        self._assignor = assignor
        self._make_id = make_id
        self.member_id = str(make_id())
        self.epoch = JOIN_EPOCH
        self.interval = 5.0
        """Seconds between heartbeats, as the coordinator named them last; the broker's default before that."""
        self.owned: Partitions = _NONE
        """The partitions of the assignment applied last; a revoked one until its revocation is complete."""
        self._topics: tuple[str, ...] = ()
        self.regex = ""
        """The regular expression by which the coordinator matches topics, so that any may be assigned; empty for none."""
        self._assigned: Partitions | None = None
        """The assignment of the last response with one; None before the first of a session."""
        self._last: Reconciliation | None = None
        """The reconciliation applied last; None before the first of a session."""
        self._applying: Reconciliation | None = None
        """The reconciliation that has begun and is not complete."""
        self._confirmed: _Fields | None = None
        """What the coordinator has of this member; None if that is uncertain: then the next request carries all fields."""
        self._in_flight: _Fields | None = None
        self._must_report = False
        """Whether `owned` is sent next even if it did not change, as after every assignment."""
        self._was_fenced = False
        self._unreleased = 0
        self.may_gain = True
        """Whether partitions may follow soon: the assignment is empty, or its last change added some."""
        self._was_known = False  # the same, before the request in flight
        self.may_be_known = False
        """Whether a heartbeat that joins was sent, so that the coordinator may have the member."""

    def __repr__(self) -> str:
        return (
            f"<ConsumerMemberState {self.group_id!r}: {self.member_id}, epoch {self.epoch}, "
            f"owns {len(self.owned)} of {len(self._assigned or ())}>"
        )

    @property
    def identity(self) -> MemberIdentity:
        """The member that commits, with its epoch; without a member id while it is not in the group."""
        if self.epoch <= JOIN_EPOCH:
            return MemberIdentity(group_instance_id=self.group_instance_id)
        return MemberIdentity(self.member_id, self.epoch, self.group_instance_id)

    # --- joins ----------------------------------------------------------------------------------------------------

    def begin(self, topics: Iterable[str] | SubscriptionPattern) -> None:
        """Begin a session that owns nothing yet, with these topics. A member that is in the group stays in it.

        The response to its first heartbeat, which has all fields, has the assignment again.
        """
        self.subscribe(topics)
        self._forget_assignment()

    def subscribe(self, topics: Iterable[str] | SubscriptionPattern) -> None:
        """Change the topics: the next heartbeat sends them; its response, or a later one, has the assignment."""
        if isinstance(topics, SubscriptionPattern):
            self._topics, self.regex = (), topics.pattern
        else:
            self._topics, self.regex = tuple(sorted(topics)), ""

    def _forget_assignment(self) -> None:
        self._assigned = self._last = self._applying = self._confirmed = None
        self.owned, self._must_report = _NONE, False

    def rejoin(self, *, with_new_id: bool = False) -> None:
        """Make the next heartbeat one that joins: with epoch 0, no partitions, and no topic ids that wait for a name."""
        self.epoch = JOIN_EPOCH
        self._forget_assignment()
        if with_new_id:
            self.member_id = str(self._make_id())
            self.may_be_known = False

    @property
    def has_assignment(self) -> bool:
        """Whether the coordinator has sent an assignment in this session, which may be empty."""
        return self._assigned is not None and self.epoch > JOIN_EPOCH

    # --- requests -------------------------------------------------------------------------------------------------

    @property
    def reported(self) -> Partitions:
        """What heartbeats report as owned: also partitions that are being applied or about to be.

        If a request left those out, the coordinator could give them to another member at once, before its response
        reaches this one, which has begun to use them by then.
        """
        applying = _NONE if self._applying is None else self._applying.owned
        return self.owned | applying | (self._assigned or _NONE)

    @property
    def has_news(self) -> bool:
        """Whether the coordinator has to be informed at once: of what the member owns, or after a failure."""
        return self._confirmed is None or self._must_report or self._confirmed.owned != self.reported

    def next_request(self) -> m.ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat: with all fields if the last outcome is uncertain, else with what has changed.

        While partitions are revoked `reported` still has them, so that the list is not sent and the coordinator does not
        give them away. An empty list is always sent: if a response with an assignment was lost, null would not correct
        what the coordinator believes.
        """
        before, now = (
            self._confirmed,
            _Fields(self._rebalance_timeout_ms, self._topics, self.regex, self._assignor, self.reported),
        )
        sends_owned = before is None or self._must_report or before.owned != now.owned or not now.owned
        self._in_flight, self._must_report = now, False
        self._was_known, self.may_be_known = self.may_be_known, True
        return m.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.group_instance_id,
            rack_id=self._rack_id if before is None else None,
            rebalance_timeout_ms=now.rebalance_timeout_ms if before is None else -1,
            subscribed_topic_names=list(now.topics)
            if before is None or before.topics != now.topics
            else None,
            # an empty one replaces an earlier one, also that of the static member that had this instance id
            subscribed_topic_regex=now.regex if before is None or before.regex != now.regex else None,
            server_assignor=now.assignor if before is None else None,
            topic_partitions=by_topic_id(now.owned) if sends_owned else None,
        )

    def leave_request(self, *, is_static_leave: bool) -> m.ConsumerGroupHeartbeatRequest:
        """Return the heartbeat that leaves. It may be repeated: the coordinator then no longer knows the member."""
        return m.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=STATIC_LEAVE_EPOCH if is_static_leave else LEAVE_EPOCH,
            instance_id=self.group_instance_id,
        )

    # --- outcomes -------------------------------------------------------------------------------------------------

    def on_response(self, response: m.ConsumerGroupHeartbeatResponse) -> bool:
        """Apply a response without an error; return whether the epoch or the assignment is new.

        Epochs and intervals that no coordinator may send are ignored: an epoch of -1 would make the next heartbeat one
        that leaves, an interval of 0 would send them without a pause. An assignment that comes with such an epoch is also
        ignored: a join that repeats it as owned is refused.
        """
        if response.member_epoch <= JOIN_EPOCH:
            self.on_lost_response()
            return False
        sent, self._in_flight = self._in_flight, None
        if sent is not None:
            self._confirmed = sent
        self._was_fenced, self._unreleased = False, 0
        if response.heartbeat_interval_ms > 0:
            self.interval = response.heartbeat_interval_ms / 1000
        before = self.epoch, self._assigned
        had = self._assigned or _NONE
        if response.assignment is not None:
            self._assigned = frozenset(
                (entry.topic_id, number)
                for entry in response.assignment.topic_partitions
                for number in entry.partitions
            )
            self.may_gain = not self._assigned or bool(self._assigned - had)
        self.epoch = response.member_epoch
        return (self.epoch, self._assigned) != before

    def on_newer_epoch(self, epoch: int) -> None:
        """The coordinator has named this epoch in a response whose other contents are unknown here."""
        if self.epoch > JOIN_EPOCH:
            self.epoch = max(self.epoch, epoch)
        self.on_lost_response()

    def on_lost_response(self) -> None:
        """The outcome of the request is unknown: the next one carries all fields."""
        self._in_flight = self._confirmed = None

    def on_error(self, code: int) -> HeartbeatAction:
        """Return what the error code of a response means, and make the next request one that fits it."""
        was_joining = self.epoch == JOIN_EPOCH
        self.on_lost_response()
        action = heartbeat_action(code)
        if action is HeartbeatAction.REJOIN and was_joining:
            # brokers without KAFKA-19233 refuse a known id with epoch 0
            action = HeartbeatAction.REJOIN_WITH_NEW_ID
        elif code == ErrorCode.UNKNOWN_SERVER_ERROR and was_joining:
            action = HeartbeatAction.WAIT_FOR_GENERATION
        elif code == ErrorCode.GROUP_ID_NOT_FOUND and not was_joining:
            action = HeartbeatAction.REJOIN
        if action is HeartbeatAction.WAIT_FOR_RELEASE:
            self._unreleased += 1
            if not self._was_fenced or self._unreleased > UNRELEASED_TRIES:
                action = HeartbeatAction.FAIL
        if action in (HeartbeatAction.REJOIN, HeartbeatAction.REJOIN_WITH_NEW_ID):
            self._was_fenced = True
            self.rejoin(with_new_id=action is HeartbeatAction.REJOIN_WITH_NEW_ID)
        elif action is HeartbeatAction.FAIL:
            if was_joining:  # it was refused, and so has nothing to leave
                self.may_be_known = self._was_known
            self.rejoin(with_new_id=code == ErrorCode.FENCED_INSTANCE_ID)
        return action

    # --- reconciliation -------------------------------------------------------------------------------------------

    def begin_reconciliation(self, names: Mapping[UUID, str]) -> Reconciliation | None:
        """Begin to apply the newest assignment, with the known topic names by id; None if nothing has changed.

        What it adds counts as owned from now on, what it revokes until `reconciled`.
        """
        if not self.has_assignment or self._assigned is None:
            return None
        assignment: dict[str, list[int]] = {}
        # a set: a topic that was recreated may be assigned by both of its ids
        for tp in sorted({TopicPartition(names[t], number) for t, number in self._assigned if t in names}):
            assignment.setdefault(tp.topic, []).append(tp.partition)
        unresolved = frozenset(topic_id for topic_id, _ in self._assigned if topic_id not in names)
        found = Reconciliation(self.identity, assignment, self._assigned, unresolved)
        self._applying = None if found == self._last else found
        return self._applying

    def reconciled(self, done: Reconciliation) -> None:
        """The assignment is applied and its revocation is complete, with the last commit: report what is owned."""
        self._must_report = self._must_report or self._last is None or done.owned != self._last.owned
        self._last, self.owned, self._applying = done, done.owned, None

    @property
    def topic_ids(self) -> frozenset[UUID]:
        """The topic ids of the assignment that was received last."""
        return frozenset(topic_id for topic_id, _ in self._assigned or ())

    @property
    def unresolved(self) -> frozenset[UUID]:
        """The topic ids of the assignment applied last that metadata did not know."""
        return frozenset() if self._last is None else self._last.unresolved
