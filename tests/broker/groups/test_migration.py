"""Live groups change their protocol: writes that fail, parked requests, and the timers of members."""

from __future__ import annotations

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.shared.requests import LeavingMember
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned
from tests.broker.groups.consumer_members import parts, topics_of
from tests.broker.harness import GROUP, Harness

SUBSCRIPTION = encode_versioned(m.ConsumerProtocolSubscription(["a"]), 1)
CLASSIC = {"protocols": (("range", SUBSCRIPTION),), "session_timeout": 10.0, "rebalance_timeout": 5.0}


def whole(*indexes: int) -> bytes:
    assignment = m.ConsumerProtocolAssignment(
        [m.ConsumerProtocolAssignment.TopicPartition("a", list(indexes))]
    )
    return encode_versioned(assignment, 1)


def harness(**config) -> Harness:
    return Harness(topics=topics_of(a=4), group_consumer_assignment_interval=0.0, **config)


def group_of(driver: Harness) -> ModernGroup | None:
    return driver.coordinator.consumer_groups.get(GROUP)


def joined_classic(driver: Harness, **fields) -> str:
    """Join a classic member, whoever is in the group already; return its id."""
    (answer,) = driver.join(**{**CLASSIC, **fields})
    if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
        answers = driver.join(answer.member_id, **{**CLASSIC, **fields})
        driver.advance(0.0)
        (answer,) = answers
    assert answer.error is ErrorCode.NONE
    return answer.member_id


def stable(driver: Harness) -> str:
    """Make a classic group of one member with all partitions; return its id."""
    member_id = joined_classic(driver)
    (answer,) = driver.sync(member_id, {member_id: whole(0, 1, 2, 3)})
    assert answer.error is ErrorCode.NONE
    return member_id


def mixed(driver: Harness) -> str:
    """Make a consumer group of a classic member and `two`; return the id of the former."""
    member_id = stable(driver)
    (answer,) = driver.beat("two", 0)
    assert (answer.error, answer.member_epoch) == (ErrorCode.NONE, 2)
    return member_id


@pytest.fixture
def driver() -> Harness:
    """A coordinator of both protocols."""
    return harness()


def test_an_upgrade_that_is_not_written_leaves_the_classic_group(driver):
    member_id = stable(driver)
    driver.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    (answer,) = driver.beat("two", 0)
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_of(driver) is None
    assert driver.group.state is ClassicGroupState.STABLE
    assert driver.heartbeat(member_id) is ErrorCode.NONE
    assert driver.timers.keys == {("heartbeat", GROUP, member_id)}
    driver.log.refuses = None
    assert driver.beat("two", 0)[0].error is ErrorCode.NONE
    assert set(group_of(driver).members) == {member_id, "two"}
    assert GROUP not in driver.coordinator.groups


def test_an_upgrade_that_is_not_written_in_a_rebalance_begins_it_again(driver):
    member_id = stable(driver)
    other = driver.new_id(**CLASSIC)
    parked = driver.join(other, **CLASSIC)
    assert not parked
    driver.log.refuses = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert driver.beat("two", 0)[0].error is ErrorCode.NOT_COORDINATOR
    assert parked[0].error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.log.refuses = None
    assert driver.heartbeat(member_id) is ErrorCode.REBALANCE_IN_PROGRESS
    answers = [driver.join(each, **CLASSIC) for each in (member_id, other)]
    assert [answer.generation_id for (answer,) in answers] == [2, 2]


def test_an_upgrade_that_is_replicated_too_late_is_undone(driver):
    member_id = stable(driver)
    driver.hold_followers()
    answers = driver.beat("two", 0)
    assert not answers
    assert set(group_of(driver).members) == {member_id, "two"}
    driver.advance(5.0)
    assert answers[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(member_id, generation=1) is ErrorCode.NONE
    driver.release_followers()
    assert driver.group.state is ClassicGroupState.STABLE


def test_a_downgrade_that_is_not_written_leaves_the_consumer_group(driver):
    member_id = mixed(driver)
    before = group_of(driver)
    driver.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    assert driver.beat("two", -1)[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_of(driver) == before
    assert GROUP not in driver.coordinator.groups
    sessions = {("consumer session", GROUP, each) for each in (member_id, "two")}
    assert driver.timers.keys == sessions
    driver.log.refuses = None
    assert driver.beat("two", -1)[0].error is ErrorCode.NONE
    assert driver.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert driver.timers.keys == {("heartbeat", GROUP, member_id), ("join", GROUP)}


def test_a_session_that_expires_downgrades_the_group_even_if_the_first_write_fails():
    driver = harness(group_consumer_session_timeout=6.0)
    member_id = mixed(driver)
    driver.advance(5.0)
    assert driver.heartbeat(member_id, generation=1) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.advance(1.5)
    assert set(group_of(driver).members) == {member_id, "two"}
    driver.log.refuses = None
    driver.advance(0.5)
    assert group_of(driver) is None
    assert set(driver.group.members) == {member_id}


def test_a_downgrade_on_which_members_have_built_is_not_undone(driver):
    member_id = mixed(driver)
    driver.hold_followers()
    left = driver.beat("two", -1)
    (answer,) = driver.join(member_id, **{**CLASSIC, "rebalance_timeout": 30.0})
    assert (answer.error, answer.generation_id) == (ErrorCode.NONE, 3)
    driver.advance(5.0)
    assert left[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.generation_id == 3
    driver.release_followers()
    assert driver.sync(member_id, {member_id: whole(0, 1, 2, 3)})[0].error is ErrorCode.NONE
    driver.move()
    assert driver.group.members[member_id].assignment == whole(0, 1, 2, 3)
    assert group_of(driver) is None


def test_a_classic_member_that_does_not_join_again_is_removed(driver):
    member_id = mixed(driver)
    for _ in range(4):
        assert driver.heartbeat(member_id, generation=1) is ErrorCode.REBALANCE_IN_PROGRESS
        driver.advance(1.0)
        driver.beat("two", 2, owned=frozenset())
    driver.advance(1.0)
    assert set(group_of(driver).members) == {"two"}
    assert driver.heartbeat(member_id, generation=1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_does_not_sync_is_removed(driver):
    driver.beat("two", 0)
    member_id = joined_classic(driver)
    driver.advance(4.9)
    assert member_id in group_of(driver).members
    driver.advance(0.1)
    assert set(group_of(driver).members) == {"two"}
    member_id = joined_classic(driver)
    epoch = group_of(driver).members[member_id].epoch
    assert driver.sync(member_id, generation=epoch)[0].error is ErrorCode.NONE
    driver.advance(5.0)
    assert member_id in group_of(driver).members
    driver.advance(5.0)
    assert member_id not in group_of(driver).members, "its session has expired"


def test_a_member_that_changes_to_the_consumer_protocol_has_no_other_timers(driver):
    driver.beat("two", 0)
    member_id = joined_classic(driver)
    assert ("consumer sync", GROUP, member_id) in driver.timers.keys
    (answer,) = driver.beat(member_id, 0)
    assert answer.error is ErrorCode.NONE
    assert {key for key in driver.timers.keys if key[0] in ("consumer sync", "consumer join")} == set()
    driver.advance(44.0)
    assert member_id in group_of(driver).members


def test_the_last_consumer_is_replaced_by_a_classic_static_member(driver):
    """The group is a classic one, and stable: the member has the partitions of the one before."""
    driver.beat("one", 0, instance_id="i")
    driver.beat("one", 2, owned=parts("a", 0, 1, 2, 3), instance_id="i")
    (answer,) = driver.join(group_instance_id="i", **CLASSIC)
    assert (answer.error, answer.generation_id, answer.leader) == (ErrorCode.NONE, 2, "")
    assert driver.group.state is ClassicGroupState.STABLE
    (synced,) = driver.sync(answer.member_id, group_instance_id="i")
    assert synced.assignment == whole(0, 1, 2, 3)
    assert driver.timers.keys == {("heartbeat", GROUP, answer.member_id)}
    driver.move()
    assert driver.group.members[answer.member_id].assignment == whole(0, 1, 2, 3)


def test_a_replacement_that_is_not_written_leaves_the_member(driver):
    driver.beat("one", 0, instance_id="i")
    before = group_of(driver)
    driver.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    (answer,) = driver.join(group_instance_id="i", **CLASSIC)
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_of(driver) == before
    assert driver.beat("one", 2, instance_id="i")[0].error is ErrorCode.NONE


def test_a_classic_member_whose_join_is_replicated_too_late_has_a_session(driver):
    """Others have built on its join, so it stays in the group; it must not stay for ever."""
    driver.beat("two", 0)
    third = driver.new_id(**CLASSIC)
    driver.hold_followers()
    answers = driver.join(third, **CLASSIC)
    driver.advance(1.0)
    driver.beat("four", 0)
    driver.advance(4.0)
    assert answers[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert third in group_of(driver).members
    driver.release_followers()
    driver.advance(10.0)
    assert third not in group_of(driver).members


@pytest.mark.parametrize(
    ("left", "kind"), [(["two"], "classic"), (["two", "three"], "classic"), (["three"], "consumer")]
)
def test_an_admin_removes_members(driver, left, kind):
    """The group is a classic one as soon as all members of the consumer protocol are gone."""
    member_id = mixed(driver)
    third = joined_classic(driver)
    names = {"two": "two", "three": third}
    assert driver.leave(*(names[name] for name in left)) == [ErrorCode.NONE] * len(left)
    assert (group_of(driver) is None) == (kind == "classic")
    assert driver.leave(LeavingMember(member_id, "i")) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_group_that_is_too_large_for_a_classic_one_stays_a_consumer_group():
    driver = harness(group_max_size=1)
    driver.beat("two", 0)
    ids = [joined_classic(driver) for _ in range(2)]
    driver.beat("two", -1)
    assert set(group_of(driver).members) == set(ids)
    driver.leave(ids[0])
    assert group_of(driver) is None
    assert set(driver.group.members) == {ids[1]}


@pytest.mark.parametrize(
    ("policy", "upgrades", "joins", "downgrades"),
    [
        ("bidirectional", True, True, True),
        ("upgrade", True, True, False),
        ("downgrade", False, True, True),
        ("disabled", False, False, False),
    ],
)
def test_the_migration_policy(policy, upgrades, joins, downgrades):
    driver = harness(group_consumer_migration_policy=policy)
    member_id = stable(driver)
    (answer,) = driver.beat("two", 0)
    assert answer.error is (ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    if not upgrades:
        assert answer.error_message == (
            "Cannot upgrade classic group g to consumer group because online upgrade is disabled."
        )
        driver.leave(member_id)
        assert driver.beat("two", 0)[0].error is ErrorCode.NONE
    (answer,) = driver.join("three", **CLASSIC)
    assert answer.error is (ErrorCode.NONE if joins else ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    driver.beat("two", -1)
    assert (group_of(driver) is None) == (joins and downgrades)


def test_offsets_outlive_both_changes(driver):
    member_id = stable(driver)
    assert driver.commit(5, topic="a", member_id=member_id, generation_id=1) is ErrorCode.NONE
    driver.beat("two", 0)
    assert driver.commit(6, topic="a", member_id=member_id, generation_id=1) is ErrorCode.NONE
    assert driver.commit(7, topic="a", member_id=member_id, generation_id=2) is ErrorCode.ILLEGAL_GENERATION
    driver.move()
    assert list(driver.committed().values()) == [6]
    driver.beat("two", -1)
    driver.move()
    assert list(driver.committed().values()) == [6]
    assert group_of(driver) is None
