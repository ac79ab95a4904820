"""Offset commits of classic groups, and the move of a group to another coordinator."""

from __future__ import annotations

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from tests.broker.harness import GROUP, Harness

T0 = TopicPartition("t", 0)

# -- commits -----------------------------------------------------------------------------------------------


def test_a_consumer_with_manual_assignment_commits_with_generation_minus_one(harness):
    assert harness.commit(7, metadata="m") == ErrorCode.NONE
    assert harness.group.is_simple
    committed = harness.coordinator.offsets.committed(GROUP)[T0]
    assert (committed.offset, committed.metadata, committed.leader_epoch) == (7, "m", -1)


@pytest.mark.parametrize(
    ("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_commit_with_a_generation_for_an_unknown_group(version, error):
    assert Harness().commit(member_id="m", generation_id=1, api_version=version) == error


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "one", "generation_id": 1}, ErrorCode.NONE),
        ({"member_id": "one", "generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "one", "generation_id": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "who", "generation_id": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation_id": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "one", "generation_id": 1, "group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_to_a_stable_group(harness, fields, error):
    (one,) = harness.stable(1)
    fields = {**fields, "member_id": one if fields["member_id"] == "one" else fields["member_id"]}
    assert harness.commit(5, **fields) == error
    assert (T0 in harness.coordinator.offsets.committed(GROUP)) == (error == ErrorCode.NONE)


def test_commits_during_a_rebalance(harness):
    one, two = harness.stable(2)
    harness.join(one)
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.commit(1, member_id=two, generation_id=1) == ErrorCode.NONE
    harness.join(two)
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE
    assert harness.commit(2, member_id=two, generation_id=1) == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit(2, member_id=two, generation_id=2) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.sync_all([one, two])
    assert harness.commit(2, member_id=two, generation_id=2) == ErrorCode.NONE
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 2


def test_an_empty_group_accepts_commits_of_non_members(harness):
    (one,) = harness.stable(1)
    harness.leave(one)
    assert harness.commit(9) == ErrorCode.NONE
    assert harness.commit(9, member_id=one, generation_id=1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_metadata_is_limited_by_offset_metadata_max_size():
    harness = Harness(offset_metadata_max_size=4)
    assert harness.commit(1, metadata="12345") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert T0 not in harness.coordinator.offsets.committed(GROUP)
    assert harness.commit(1, metadata="1234") == ErrorCode.NONE


def test_deleting_a_group(harness):
    assert harness.delete() == [ErrorCode.GROUP_ID_NOT_FOUND]
    (one,) = harness.stable(1)
    harness.commit(3, member_id=one, generation_id=1)
    assert harness.delete() == [ErrorCode.NON_EMPTY_GROUP]
    harness.leave(one)
    assert harness.delete() == [ErrorCode.NONE]
    assert harness.coordinator.groups == {}
    assert harness.coordinator.offsets.committed(GROUP) == {}
    assert harness.timers.keys == set()
    move(harness)
    assert harness.coordinator.groups == {}


def test_the_offsets_of_a_deleted_topic_are_removed(harness):
    harness.commit(3)
    harness.coordinator.remove_topic("other")
    assert T0 in harness.coordinator.offsets.committed(GROUP)
    harness.coordinator.remove_topic("t")
    assert harness.coordinator.offsets.committed(GROUP) == {}
    move(harness)
    assert harness.coordinator.offsets.committed(GROUP) == {}


# -- another coordinator -------------------------------------------------------------------------------------


def move(harness: Harness) -> None:
    """Move the partition of `__consumer_offsets` to another node, with another coordinator."""
    harness.move()


def test_a_stable_group_survives_with_members_assignments_and_offsets(harness):
    one, two = harness.stable(2, session_timeout=10.0)
    harness.commit(42, member_id=one, generation_id=1)
    harness.advance(9.0)
    old = harness.coordinator
    move(harness)
    assert old.groups == {}
    assert old.heartbeat(GROUP, RequestMember(one, 1)) == ErrorCode.NOT_COORDINATOR
    group = harness.group
    assert (group.state, group.generation_id, group.leader) == (ClassicGroupState.STABLE, 1, one)
    assert (group.protocol_type, group.protocol_name) == ("consumer", "range")
    assert harness.heartbeat(one) == ErrorCode.NONE
    assert harness.sync(two)[0].assignment == b"1"
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 42
    harness.advance(9.9)  # the move restarts the session timers
    assert harness.heartbeat(two) == ErrorCode.NONE
    assert harness.leave(one) == [0]
    assert harness.join(two)[0].generation_id == 2


def test_members_that_do_not_find_the_new_coordinator_expire(harness):
    harness.stable(2, session_timeout=10.0)
    move(harness)
    harness.advance(10.0)
    assert harness.group.state is ClassicGroupState.EMPTY


def test_a_rebalance_in_progress_is_lost(harness):
    one, two = harness.stable(2)
    parked = harness.join(one)
    move(harness)
    assert parked[0].error == ErrorCode.NOT_COORDINATOR
    assert harness.group.state is ClassicGroupState.STABLE
    assert harness.group.generation_id == 1
    assert harness.heartbeat(two) == ErrorCode.NONE


def test_a_generation_without_an_assignment_is_lost_and_parked_syncs_are_answered(harness):
    one, two = harness.stable(2)
    harness.join(one)
    harness.join(two)
    parked = harness.sync(two, generation=2)
    move(harness)
    assert parked[0].error == ErrorCode.NOT_COORDINATOR
    assert harness.group.generation_id == 1
    assert harness.heartbeat(two, generation=2) == ErrorCode.ILLEGAL_GENERATION


def test_a_pending_member_id_is_lost(harness):
    pending = harness.new_id()
    move(harness)
    assert harness.join(pending)[0].error == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_survives(harness):
    (one,) = harness.stable(1)
    harness.leave(one)
    harness.commit(5)
    move(harness)
    assert (harness.group.state, harness.group.generation_id) == (ClassicGroupState.EMPTY, 2)
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 5


def test_offsets_of_a_simple_group_survive(harness):
    harness.commit(5)
    move(harness)
    assert harness.group.is_simple
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 5


def test_a_static_member_survives_and_can_be_replaced(harness):
    join = harness.join(group_instance_id="i1")
    harness.advance(0)
    harness.sync_all([join[0].member_id])
    move(harness)
    (answer,) = harness.join(group_instance_id="i1")
    assert (answer.error, answer.generation_id) == (ErrorCode.NONE, 1)
    move(harness)
    assert set(harness.group.members) == {answer.member_id}


def test_a_group_above_a_lowered_max_size_rebalances_after_loading(harness):
    one, two, three = harness.stable(3, session_timeout=100.0)
    harness.config = type(harness.config)(group_max_size=2)
    move(harness)
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    first, second = harness.join(one), harness.join(two)
    assert harness.join(three)[0].error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first == second == []  # as in Kafka, the rejected JoinGroup does not complete the join phase
    harness.advance(60.0)
    assert first[0].generation_id == second[0].generation_id == 2
