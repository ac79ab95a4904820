"""Invariants of consumer groups (KIP-848) under random actions, and of their assignors."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncgroup.broker.groups.consumer.assignors import MemberSpec
from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.broker.groups.consumer.consumer_group_records import (
    changes,
    decode_group_record,
    encode_group_record,
    replay,
)
from asyncgroup.broker.groups.consumer.heartbeat import ASSIGNORS, remove
from asyncgroup.broker.groups.consumer.modern_group import ConsumerGroupState, ModernGroup
from asyncgroup.error_codes import ErrorCode
from tests.broker.groups.consumer_members import IDS, Driver, Member, topics_of
from tests.profiles import examples

SUBSCRIPTIONS = [frozenset("a"), frozenset("ab"), frozenset("c"), frozenset()]


class ConsumerGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(topics_of(a=5, b=3), assignment_interval=1.0)
        self.joined = 0
        self.log: ModernGroup | None = None
        self.seen = self.driver.group

    def pick(self, index: int) -> Member | None:
        members = self.driver.members
        return members[index % len(members)] if members else None

    @rule(
        topics=st.sampled_from(SUBSCRIPTIONS),
        instance=st.sampled_from([None, None, "one", "two"]),
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def join(self, topics, instance, assignor):
        if len(self.driver.members) < 6:
            self.joined += 1
            member = Member(f"m{self.joined}", topics, instance_id=instance, server_assignor=assignor)
            if self.driver.beat(member) is ErrorCode.NONE:
                self.driver.members = [
                    m for m in self.driver.members if not instance or m.fields["instance_id"] != instance
                ]
                self.driver.members.append(member)

    @rule(index=st.integers(0, 5), full=st.booleans(), lose=st.booleans())
    def beat(self, index, full, lose):
        if member := self.pick(index):
            error = self.driver.beat(member, full=full, lose=lose)
            if error is not ErrorCode.NONE:
                assert error in (
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                )
                member.rejoin()

    @rule(index=st.integers(0, 5))
    def revoke(self, index):
        if member := self.pick(index):
            member.revoke()

    @rule(index=st.integers(0, 5), topics=st.sampled_from(SUBSCRIPTIONS))
    def resubscribe(self, index, topics):
        if member := self.pick(index):
            member.topics = topics

    @rule(index=st.integers(0, 5))
    def leave(self, index):
        if member := self.pick(index):
            self.driver.leave(member)
            self.driver.members.remove(member)

    @rule(index=st.integers(0, 5))
    def expire(self, index):
        """The session of a member that is gone expires; a member that owns partitions knows that it has lost them."""
        if member := self.pick(index):
            if member.id in self.driver.group.members:
                self.driver.group = remove(self.driver.group, member.id, self.driver.topics)
            self.driver.members.remove(member)

    @rule(a=st.integers(1, 9), b=st.integers(0, 4), ms=st.sampled_from([0, 500, 2000]))
    def change_topics(self, a, b, ms):
        self.driver.topics = topics_of(a=a, **({"b": b} if b else {}))
        self.driver.now += ms

    @invariant()
    def no_partition_has_two_owners(self):
        group = self.driver.group
        count = Counter(tp for m in group.members.values() for tp in (*m.assigned, *m.revoking))
        assert all(number == 1 for number in count.values()), count
        live = Counter(tp for member in self.driver.members for tp in member.owned)
        assert all(number == 1 for number in live.values()), live

    @invariant()
    def epochs_are_in_order(self):
        group = self.driver.group
        assert group.assignment_epoch <= group.epoch
        assert all(member.epoch <= group.assignment_epoch for member in group.members.values())

    @invariant()
    def the_log_has_the_same_group(self):
        group = self.driver.group
        for record in changes(self.seen, group):
            read = decode_group_record(*encode_group_record(record))
            assert read is not None
            self.log = replay(self.log, read)
        self.seen = group
        if self.log is not None:
            assert dict(self.log.members) == dict(group.members)
            assert self.log == group

    def teardown(self):
        driver = self.driver
        known = {m.id for m in driver.members}
        for member_id in [each for each in driver.group.members if each not in known]:
            driver.group = remove(driver.group, member_id, driver.topics)
        driver.settle()
        if driver.members:
            assert driver.group.state is ConsumerGroupState.STABLE
        for member in driver.members:
            assert member.owned == driver.group.target(driver.group.members[member.id])
        subscribed = {name for member in driver.members for name in member.topics}
        wanted = {
            TopicIdPartition(IDS[name], index)
            for name in subscribed
            if (facts := driver.topics.find(name)) is not None
            for index in range(facts.partitions)
        }
        assert {tp for member in driver.members for tp in member.owned} == wanted


ConsumerGroups.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestConsumerGroups = ConsumerGroups.TestCase


# -- assignors -----------------------------------------------------------------------------------------------

TOPICS = [UUID(int=number) for number in range(1, 5)]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 8), min_size=1)


@st.composite
def specs(draw, counts, *, same: bool):
    """Members with subscriptions to existing topics and targets of which some are out of date."""
    shared = frozenset(draw(st.sets(st.sampled_from(sorted(counts)), min_size=1)))
    found = {}
    taken: set[TopicIdPartition] = set()
    for number in range(draw(st.integers(1, 6))):
        topics = shared if same else frozenset(draw(st.sets(st.sampled_from(sorted(counts)))))
        places = st.builds(TopicIdPartition, st.sampled_from(TOPICS), st.integers(0, 9))
        target = frozenset(draw(st.sets(places, max_size=6))) - taken
        taken |= target
        found[f"m{number}"] = MemberSpec(draw(st.sampled_from([None, f"i{9 - number}"])), topics, target)
    return found


def check_complete(members, counts, targets):
    """Each partition of a subscribed topic has one owner, which subscribes to it."""
    assert targets.keys() == members.keys()
    for member_id, target in targets.items():
        assert {tp.topic_id for tp in target} <= members[member_id].topics
    topics = {topic for member in members.values() for topic in member.topics}
    wanted = Counter(TopicIdPartition(t, i) for t in topics for i in range(counts[t]))
    assert Counter(tp for target in targets.values() for tp in target) == wanted


@given(data=st.data(), counts=COUNTS, name=st.sampled_from(sorted(ASSIGNORS)), same=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_every_partition_gets_one_subscribed_member(data, counts, name, same):
    members = data.draw(specs(counts, same=same))
    check_complete(members, counts, ASSIGNORS[name](members, counts))


@given(data=st.data(), counts=COUNTS)
@settings(max_examples=examples(200), deadline=None)
def test_uniform_is_balanced_and_moves_no_more_than_it_must(data, counts):
    members = data.draw(specs(counts, same=True))
    targets = ASSIGNORS["uniform"](members, counts)
    sizes = [len(target) for target in targets.values()]
    assert max(sizes) - min(sizes) <= 1
    again = {m: spec._replace(target=targets[m]) for m, spec in members.items()}
    assert ASSIGNORS["uniform"](again, counts) == targets
    valid = {
        m: {tp for tp in spec.target if tp.topic_id in spec.topics and tp.partition < counts[tp.topic_id]}
        for m, spec in members.items()
    }
    least, extra = divmod(sum(sizes), len(sizes))
    held = sorted(map(len, valid.values()), reverse=True)
    must_move = sum(max(0, have - least - (number < extra)) for number, have in enumerate(held))
    assert sum(len(valid[m] - targets[m]) for m in members) == must_move


@given(data=st.data(), counts=COUNTS)
@settings(max_examples=examples(200), deadline=None)
def test_uniform_with_different_subscriptions_cannot_be_evened_out_by_one_move(data, counts):
    members = data.draw(specs(counts, same=False))
    targets = ASSIGNORS["uniform"](members, counts)
    for giver, target in targets.items():
        for tp in target:
            for taker, spec in members.items():
                if taker != giver and tp.topic_id in spec.topics:
                    assert len(targets[taker]) + 1 >= len(target)
    again = {m: spec._replace(target=targets[m]) for m, spec in members.items()}
    assert ASSIGNORS["uniform"](again, counts) == targets


@given(data=st.data(), counts=COUNTS)
@settings(max_examples=examples(100), deadline=None)
def test_range_gives_equal_partitions_of_equal_topics(data, counts):
    members = data.draw(specs(counts, same=True))
    targets = ASSIGNORS["range"](members, counts)
    for target in targets.values():
        by_topic = {t: {tp.partition for tp in target if tp.topic_id == t} for t in counts}
        for found in by_topic.values():
            assert not found or found == set(range(min(found), max(found) + 1))
    topics = next(iter(members.values())).topics
    for one in topics:
        for other in topics:
            if counts[one] == counts[other]:
                for target in targets.values():
                    assert {tp.partition for tp in target if tp.topic_id == one} == {
                        tp.partition for tp in target if tp.topic_id == other
                    }
