"""The sync phase, heartbeats and sessions."""

from __future__ import annotations

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.error_codes import ErrorCode
from tests.broker.harness import Harness


def joined(count: int, **fields) -> tuple[Harness, list[str]]:
    """Return a group in COMPLETING_REBALANCE with its member ids; the first one is the leader."""
    harness = Harness()
    ids = [harness.new_id(**fields) for _ in range(count)]
    for member_id in ids:
        harness.join(member_id, **fields)
    harness.advance(0)
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE
    return harness, ids


def test_followers_wait_for_the_leaders_assignment():
    harness, (one, two, three) = joined(3)
    second, third = harness.sync(two), harness.sync(three)
    assert second == third == []
    first = harness.sync(one, {one: b"A", two: b"B"})
    assert (first[0].assignment, second[0].assignment) == (b"A", b"B")
    assert third[0].assignment == b""  # not in the leader's assignment: an empty assignment
    assert {answer[0].error for answer in (first, second, third)} == {ErrorCode.NONE}
    assert harness.group.state is ClassicGroupState.STABLE


def test_a_late_sync_gets_the_assignment_at_once():
    harness, (one, two) = joined(2)
    harness.sync(one, {one: b"A", two: b"B"})
    (answer,) = harness.sync(two)
    assert (answer.assignment, answer.protocol_name, answer.protocol_type) == (b"B", "range", "consumer")
    (again,) = harness.sync(two)
    assert again == answer


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "who"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "who"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_sync_errors(fields, error):
    harness, (one,) = joined(1)
    (answer,) = harness.sync(fields.pop("member_id", one), **fields)
    assert answer.error == error


def test_sync_during_the_join_phase(harness):
    one, two = harness.stable(2)
    harness.join(one)
    assert harness.sync(two)[0].error == ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_with_an_empty_group(harness):
    (one,) = harness.stable(1)
    harness.leave(one)
    assert harness.group.state is ClassicGroupState.EMPTY
    assert harness.sync(one)[0].error == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_do_not_sync_within_the_rebalance_timeout_are_removed():
    harness, (one, two) = joined(2, rebalance_timeout=20.0, session_timeout=100.0)
    first = harness.sync(one, {one: b"A", two: b"B"})
    assert first[0].error == ErrorCode.NONE
    harness.advance(19.9)
    assert two in harness.group.members
    harness.advance(0.1)
    assert set(harness.group.members) == {one}
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.join(one)[0].generation_id == 2


def test_a_leader_that_does_not_sync_is_removed_and_the_others_rejoin():
    harness, (one, two) = joined(2, rebalance_timeout=20.0, session_timeout=100.0)
    second = harness.sync(two)
    harness.advance(20.0)
    assert second[0].error == ErrorCode.REBALANCE_IN_PROGRESS
    assert set(harness.group.members) == {two}
    assert harness.heartbeat(one, generation=1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_leaves_while_followers_wait_for_it():
    harness, (one, two) = joined(2)
    second = harness.sync(two)
    assert harness.leave(one) == [ErrorCode.NONE]
    assert second[0].error == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.join(two)[0].leader == two


# -- heartbeats ----------------------------------------------------------------------------------------------


def test_heartbeats_keep_a_session_alive(harness):
    one, two = harness.stable(2, session_timeout=10.0)
    for _ in range(5):
        harness.advance(9.0)
        assert harness.heartbeat(one) == ErrorCode.NONE
        assert harness.heartbeat(two) == ErrorCode.NONE
    harness.advance(9.0)
    assert harness.heartbeat(one) == ErrorCode.NONE
    harness.advance(1.0)
    assert set(harness.group.members) == {one}
    assert harness.heartbeat(one) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_a_session_alive_too(harness):
    (one,) = harness.stable(1, session_timeout=10.0)
    for _ in range(3):
        harness.advance(9.0)
        assert harness.commit(member_id=one, generation_id=1) == ErrorCode.NONE
    assert set(harness.group.members) == {one}


@pytest.mark.parametrize(
    ("member", "generation", "error"),
    [
        ("who", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 0, ErrorCode.ILLEGAL_GENERATION),
        (None, 2, ErrorCode.ILLEGAL_GENERATION),
        (None, 1, ErrorCode.NONE),
    ],
)
def test_heartbeat_errors(harness, member, generation, error):
    (one,) = harness.stable(1)
    assert harness.heartbeat(member or one, generation=generation) == error


def test_heartbeats_without_a_group(harness):
    heartbeat, member = harness.coordinator.heartbeat, RequestMember("m", 1)
    assert heartbeat("g", member) == ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeat("", member) == ErrorCode.INVALID_GROUP_ID
    harness.coordinator.unload(0)
    assert heartbeat("g", member) == ErrorCode.NOT_COORDINATOR


def test_heartbeats_succeed_during_the_sync_phase():
    harness, (one, two) = joined(2)
    assert harness.heartbeat(one) == harness.heartbeat(two) == ErrorCode.NONE


def test_the_session_does_not_expire_while_a_request_is_parked_and_restarts_with_its_answer():
    harness, (one, two) = joined(2, session_timeout=10.0, rebalance_timeout=60.0)
    second = harness.sync(two)
    for _ in range(3):
        harness.advance(9.0)
        harness.heartbeat(one)
    assert two in harness.group.members
    harness.sync(one, {two: b"B"})
    assert second[0].assignment == b"B"
    harness.advance(9.9)
    harness.heartbeat(one)
    assert harness.heartbeat(two) == ErrorCode.NONE


def test_the_sessions_of_all_members_expire(harness):
    harness.stable(3, session_timeout=10.0, rebalance_timeout=30.0)
    harness.advance(10.0)
    assert harness.group.state is ClassicGroupState.EMPTY
    assert harness.group.generation_id == 2
    assert (harness.group.leader, harness.group.protocol_name) == (None, None)
    assert harness.timers.keys == set()


def test_the_join_phase_ends_when_the_last_missing_member_expires(harness):
    one, two, _ = harness.stable(3, session_timeout=10.0)
    first = harness.join(one)
    second = harness.join(two)
    assert first == second == []
    harness.advance(10.0)
    assert first[0].generation_id == second[0].generation_id == 2
