"""Invariants of a group under random actions of its members.

A state machine drives one coordinator with joins, syncs, heartbeats, commits, leaves, moves and time. Each member
keeps the responses it got, as a client does, so that generations can be compared.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.error_codes import ErrorCode
from tests.broker.harness import GROUP, FakeTimers, Harness
from tests.profiles import examples

PROTOCOLS = [
    (("range", b"1"),),
    (("range", b"2"), ("sticky", b"2")),
    (("sticky", b"3"), ("range", b"3")),
]
SESSION = 10.0
REBALANCE = 30.0


class Member:
    """A member's own state, as its client knows it."""

    def __init__(self, instance: str | None, protocols) -> None:
        self.instance = instance
        self.protocols = protocols
        self.id = ""
        self.generation = -1
        self.joins: list = []
        self.syncs: list = []
        self.leads = False

    @property
    def parked(self) -> bool:
        return bool(self.joins and not self.joins[-1]) or bool(self.syncs and not self.syncs[-1])


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(initial_rebalance_delay=2.0, group_max_size=4, new_member_join_timeout=60.0)
        self.members: list[Member] = []
        self.generation = 0
        self.answers: list = []  # every list that a response may be appended to, at most once

    def pick(self, index: int) -> Member | None:
        return self.members[index % len(self.members)] if self.members else None

    def learn(self) -> None:
        """Let the members process the responses they got."""
        for member in self.members:
            if member.joins and member.joins[-1]:
                (answer,) = member.joins.pop()
                member.id = answer.member_id or member.id
                if answer.error == ErrorCode.NONE:
                    member.generation, member.leads = answer.generation_id, bool(answer.members)
                    assert answer.protocol_name in {name for name, _ in member.protocols}
                elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    member.id, member.generation = "", -1
            if member.syncs and member.syncs[-1]:
                member.syncs.pop()

    # -- actions of members ----------------------------------------------------------------------------------

    @rule(protocols=st.sampled_from(PROTOCOLS), instance=st.sampled_from([None, None, "i1", "i2"]))
    def appear(self, protocols, instance):
        if len(self.members) < 7:
            self.members.append(Member(instance, protocols))

    @rule(index=st.integers(0, 6), protocols=st.sampled_from([None, *PROTOCOLS]))
    def join(self, index, protocols):
        member = self.pick(index)
        if member is None or member.parked:
            return
        member.protocols = protocols or member.protocols
        answers = self.harness.join(
            member.id,
            group_instance_id=member.instance,
            protocols=member.protocols,
            session_timeout=SESSION,
            rebalance_timeout=REBALANCE,
        )
        member.joins = [answers]
        self.answers.append(answers)
        self.learn()

    @rule(index=st.integers(0, 6))
    def sync(self, index):
        member = self.pick(index)
        if member is None or member.parked or GROUP not in self.harness.coordinator.groups:
            return
        plan = {m: m.encode() for m in self.harness.group.members} if member.leads else {}
        answers = self.harness.sync(
            member.id, plan, generation=member.generation, group_instance_id=member.instance
        )
        member.syncs = [answers]
        self.answers.append(answers)
        self.learn()

    @rule(index=st.integers(0, 6))
    def heartbeat(self, index):
        member = self.pick(index)
        if member is None or member.parked:
            return
        error = self.harness.coordinator.heartbeat(
            GROUP, RequestMember(member.id, member.generation, member.instance)
        )
        if error == ErrorCode.NONE:
            assert member.generation == self.harness.group.generation_id

    @rule(index=st.integers(0, 6), offset=st.integers(0, 99))
    def commit(self, index, offset):
        member = self.pick(index)
        if member is None or member.parked:
            return
        error = self.harness.commit(
            offset, member_id=member.id, generation_id=member.generation, group_instance_id=member.instance
        )
        if error == ErrorCode.NONE and member.generation >= 0:
            group = self.harness.group
            assert member.generation == group.generation_id
            assert member.id in group.members
            assert group.state in (ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE)

    @rule(index=st.integers(0, 6))
    def leave(self, index):
        member = self.pick(index)
        if member is None:
            return
        self.members.remove(member)
        self.harness.leave(member.id)
        self.learn()

    @rule(index=st.integers(0, 6))
    def die(self, index):
        member = self.pick(index)
        if member is not None:
            self.members.remove(member)

    # -- other events ----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 9.0, 11.0, 31.0]))
    def time_passes(self, seconds):
        self.harness.advance(seconds)
        self.learn()

    @precondition(lambda self: GROUP in self.harness.coordinator.groups)
    @rule()
    def coordinator_moves(self):
        harness = self.harness
        harness.coordinator.unload(0)
        timers = FakeTimers()
        timers.now = harness.timers.now
        assert not harness.timers.keys
        harness.timers, harness.coordinator = timers, harness.new_coordinator(timers)
        harness.coordinator.load(0)
        self.generation = 0  # an unwritten generation may be lost
        self.learn()

    # -- invariants ------------------------------------------------------------------------------------------

    @invariant()
    def group_is_consistent(self):
        group = self.harness.coordinator.groups.get(GROUP)
        if group is None:
            return
        members = group.members
        assert group.generation_id >= self.generation
        self.generation = group.generation_id
        assert len(members) <= 4 or group.state is ClassicGroupState.PREPARING_REBALANCE
        assert group.awaiting_join_count == sum(m.is_awaiting_join for m in members.values())
        assert group.static_members == {
            m.group_instance_id: m.member_id for m in members.values() if m.is_static
        }
        assert not group.pending_join & set(members)
        assert group.pending_sync <= set(members)
        assert (group.leader in members) if members else group.leader is None
        if group.state is ClassicGroupState.EMPTY:
            assert not members
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
            assert members
            assert all(group.protocol_name in m.protocol_names for m in members.values())
            assert not any(m.is_awaiting_join for m in members.values())
        if group.state is ClassicGroupState.STABLE:
            assert not any(m.awaiting_sync for m in members.values())

    @invariant()
    def every_wait_has_an_end(self):
        """Every waiting member has a timer."""
        group = self.harness.coordinator.groups.get(GROUP)
        if group is None:
            return
        keys = self.harness.timers.keys
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            assert ("join", GROUP) in keys
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            waiting = [m for m in group.members.values() if m.awaiting_sync]
            assert not waiting or ("sync", GROUP) in keys or ("heartbeat", GROUP, group.leader) in keys
        for member in group.members.values():
            if not member.is_awaiting_join and not member.awaiting_sync:
                assert ("heartbeat", GROUP, member.member_id) in keys
        for member_id in group.pending_join:
            assert ("heartbeat", GROUP, member_id) in keys

    @invariant()
    def nothing_is_answered_twice(self):
        assert all(len(answers) <= 1 for answers in self.answers)

    def teardown(self):
        """Without further actions, every group becomes empty and every parked request gets a response."""
        self.harness.advance(1000.0)
        group = self.harness.coordinator.groups.get(GROUP)
        if group is not None:
            assert group.state is ClassicGroupState.EMPTY
            assert not group.pending_join
            assert not self.harness.timers.keys
        assert all(len(answers) == 1 for answers in self.answers)


Groups.TestCase.settings = settings(
    max_examples=examples(150),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestGroups = Groups.TestCase
