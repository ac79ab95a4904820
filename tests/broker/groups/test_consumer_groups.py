"""The coordinator of consumer groups: writes that fail, moves, and what a new coordinator loads."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from tests.broker.groups.consumer_members import parts, topics_of
from tests.broker.harness import GROUP, Harness
from tests.profiles import examples


def harness(**config) -> Harness:
    return Harness(topics=topics_of(a=4, b=2), group_consumer_assignment_interval=0.0, **config)


def group_of(driver: Harness) -> ModernGroup | None:
    return driver.coordinator.consumer_groups.get(GROUP)


def test_a_group_whose_first_write_fails_does_not_exist():
    driver = harness()
    driver.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    (answer,) = driver.beat("one", 0)
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_of(driver) is None
    assert driver.timers.keys == set()
    driver.log.refuses = None
    (answer,) = driver.beat("one", 0)
    assert (answer.error, answer.member_epoch) == (ErrorCode.NONE, 2)


def test_a_refused_change_leaves_the_group_as_it_was():
    driver = harness()
    driver.beat("one", 0)
    before = group_of(driver)
    driver.log.refuses = ErrorCode.NOT_LEADER_OR_FOLLOWER
    (answer,) = driver.beat("two", 0)
    assert answer.error is ErrorCode.NOT_COORDINATOR
    assert group_of(driver) == before
    assert driver.beat("one", 2)[0].error is ErrorCode.NONE, "a heartbeat without changes writes nothing"
    driver.log.refuses = None
    driver.beat("two", 0)
    assert set(group_of(driver).members) == {"one", "two"}


def test_a_change_that_another_response_waits_for_is_kept_though_its_write_times_out():
    """The response names the new epoch when the records are replicated; taken back, the member was fenced with that epoch."""
    driver = harness()
    driver.beat("one", 0)
    driver.hold_followers()
    first = driver.beat("one", 2, topics=frozenset("ab"), owned=parts("a", 0, 1, 2, 3))
    driver.advance(3.0)
    again = driver.beat("one", 2, topics=frozenset("ab"), owned=parts("a", 0, 1, 2, 3))
    driver.advance(3.0)
    assert [answer.error for answer in first] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    driver.release_followers()
    assert [(answer.error, answer.member_epoch) for answer in again] == [(ErrorCode.NONE, 3)]
    owned = parts("a", 0, 1, 2, 3) | parts("b", 0, 1)
    assert driver.beat("one", 3, owned=owned)[0].error is ErrorCode.NONE


def test_a_member_that_could_not_be_removed_is_removed_later():
    driver = harness()
    driver.beat("one", 0)
    driver.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.advance(45.0)
    assert "one" in group_of(driver).members
    driver.log.refuses = None
    driver.advance(0.5)
    assert "one" not in group_of(driver).members


def test_a_new_coordinator_continues():
    driver = harness()
    driver.beat("one", 0)
    driver.beat("two", 0, topics=frozenset("ab"), instance_id="i")
    driver.beat("one", 2)
    before = group_of(driver)
    driver.move()
    assert group_of(driver) == before
    driver.advance(29.0)
    assert group_of(driver) == before
    driver.advance(1.0)
    assert set(group_of(driver).members) == {"two"}, "the rebalance timeout counts from the load"
    (answer,) = driver.beat("two", 3, instance_id="i")
    assert answer.assignment == parts("a", 0, 1, 2, 3) | parts("b", 0, 1)


def test_the_offsets_of_a_deleted_group_are_gone():
    driver = harness()
    driver.beat("one", 0)
    assert driver.commit(5, topic="a", member_id="one", generation_id=2) is ErrorCode.NONE
    assert driver.delete() == [ErrorCode.NON_EMPTY_GROUP]
    driver.beat("one", -1)
    assert driver.coordinator.offsets.committed(GROUP)
    assert driver.delete() == [ErrorCode.NONE]
    assert group_of(driver) is None
    driver.move()
    assert group_of(driver) is None
    assert GROUP not in driver.coordinator.groups
    assert driver.delete_offsets(TopicPartition("a", 0)) == [ErrorCode.GROUP_ID_NOT_FOUND]


class Loads(RuleBasedStateMachine):
    """Whatever happens, a new coordinator finds the group that the last one had when its writes succeeded."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = harness()
        self.epochs: dict[str, int] = {}

    @rule(member=st.sampled_from(["one", "two", "three"]), topics=st.sampled_from(["a", "ab", "b"]))
    def join(self, member, topics):
        self._learn(member, self.driver.beat(member, 0, topics=frozenset(topics)))

    @rule(
        member=st.sampled_from(["one", "two", "three"]), owned=st.sampled_from([None, "assigned", "nothing"])
    )
    def beat(self, member, owned):
        group = group_of(self.driver)
        known = None if group is None else group.members.get(member)
        if member in self.epochs and known is not None:
            owns = {None: None, "assigned": frozenset(known.assigned), "nothing": frozenset()}[owned]
            self._learn(member, self.driver.beat(member, self.epochs[member], owned=owns))

    def _learn(self, member, answers):
        for answer in answers:
            if answer.error is ErrorCode.NONE:
                self.epochs[member] = answer.member_epoch
            elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                self.epochs.pop(member, None)

    @rule(member=st.sampled_from(["one", "two", "three"]))
    def leave(self, member):
        self.driver.beat(member, -1)

    @rule(refuses=st.sampled_from([None, None, ErrorCode.NOT_ENOUGH_REPLICAS]))
    def refuse(self, refuses):
        self.driver.log.refuses = refuses

    @rule(seconds=st.sampled_from([1.0, 30.0, 50.0]))
    def wait(self, seconds):
        self.driver.advance(seconds)

    @rule()
    def delete(self):
        self.driver.delete()

    @rule()
    def move(self):
        self.driver.move()

    @invariant()
    def a_new_coordinator_loads_the_same_group(self):
        kept = self.driver.timers, self.driver.coordinator, self.driver.store
        found = group_of(self.driver)
        self.driver.timers, self.driver.coordinator = self.driver.timers.__class__(), self.driver.coordinator
        other = self.driver.new_coordinator(self.driver.timers)
        other.load(0)
        assert other.consumer_groups.get(GROUP) == found
        self.driver.timers, self.driver.coordinator, self.driver.store = kept


Loads.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestLoads = Loads.TestCase
