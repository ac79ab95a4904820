"""The join phase: admission of members, its end, the choice of leader and protocol."""

from __future__ import annotations

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.error_codes import ErrorCode
from tests.broker.harness import GROUP, RANGE, Harness


def test_a_new_member_gets_an_id_first(harness):
    (answer,) = harness.join(client_id="app")
    assert answer.error == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("app-")
    assert harness.group.state is ClassicGroupState.EMPTY
    assert harness.group.pending_join == {answer.member_id}


def test_before_version_4_a_new_member_joins_at_once(harness):
    join = harness.join(require_known_member_id=False)
    assert join == []
    harness.advance(0)
    assert join[0].error == ErrorCode.NONE
    assert join[0].leader == join[0].member_id


def test_an_unused_member_id_expires_after_the_session_timeout(harness):
    member_id = harness.new_id(session_timeout=6.0)
    harness.advance(5.9)
    assert harness.group.pending_join == {member_id}
    harness.advance(0.2)
    assert harness.group.pending_join == set()
    (answer,) = harness.join(member_id)
    assert answer.error == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_member_leads_and_only_the_leader_gets_the_members():
    harness = Harness(initial_rebalance_delay=3.0)
    ids = [harness.new_id() for _ in range(3)]
    joins = [harness.join(member_id) for member_id in reversed(ids)]
    harness.advance(6.0)
    leader = ids[-1]
    for (answer,), member_id in zip(joins, reversed(ids), strict=True):
        assert answer.leader == leader
        assert answer.member_id == member_id
        assert answer.generation_id == 1
        assert answer.protocol_name == "range"
        assert answer.protocol_type == "consumer"
        seen = [member.member_id for member in answer.members]
        assert seen == (list(reversed(ids)) if member_id == leader else [])
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE


def test_the_initial_delay_is_extended_once_per_delay_while_members_come():
    harness = Harness(initial_rebalance_delay=3.0)
    first = harness.join(harness.new_id(), rebalance_timeout=60.0)
    harness.advance(2.0)
    second = harness.join(harness.new_id(), rebalance_timeout=60.0)
    harness.advance(1.0)  # the delay has passed, but a second member joined during it
    assert first == second == []
    harness.advance(2.9)
    assert first == []
    harness.advance(0.1)
    assert first[0].generation_id == second[0].generation_id == 1


def test_the_initial_delay_never_exceeds_the_rebalance_timeout():
    harness = Harness(initial_rebalance_delay=3.0)
    joins = [harness.join(harness.new_id(), rebalance_timeout=5.0)]
    for _ in range(4):
        harness.advance(1.5)
        if joins[0]:
            break
        joins.append(harness.join(harness.new_id(), rebalance_timeout=5.0))
    assert joins[0][0].error == ErrorCode.NONE
    assert harness.timers.now <= 6.0


def test_a_new_group_waits_for_the_initial_delay_even_if_all_have_joined():
    harness = Harness(initial_rebalance_delay=3.0)
    join = harness.join(harness.new_id())
    assert harness.group.has_all_members_joined
    harness.advance(2.9)
    assert join == []
    harness.advance(0.1)
    assert join[0].error == ErrorCode.NONE


def test_a_rebalance_of_a_stable_group_ends_when_all_have_rejoined(harness):
    one, two = harness.stable(2)
    joining = harness.join(harness.new_id())
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.heartbeat(one) == ErrorCode.REBALANCE_IN_PROGRESS
    first, second = harness.join(one), None
    assert first == []
    second = harness.join(two)
    assert [answer[0].generation_id for answer in (joining, first, second)] == [2, 2, 2]
    assert harness.group.leader == one


def test_members_that_do_not_rejoin_in_time_are_dropped_and_the_leader_replaced(harness):
    one, two = harness.stable(2, rebalance_timeout=20.0, session_timeout=30.0)
    second = harness.join(two, rebalance_timeout=20.0, session_timeout=30.0, protocols=(("range", b"new"),))
    harness.advance(19.9)
    assert second == []
    harness.advance(0.1)
    assert second[0].leader == two
    assert set(harness.group.members) == {two}
    assert harness.heartbeat(one) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_rebalance_timeout_is_that_of_the_slowest_member(harness):
    one = harness.new_id()
    two = harness.new_id()
    harness.join(one, rebalance_timeout=10.0, session_timeout=300.0)
    harness.join(two, rebalance_timeout=50.0, session_timeout=300.0)
    harness.advance(0)
    harness.sync_all([one, two])
    three = harness.join(harness.new_id(), rebalance_timeout=5.0, session_timeout=300.0)
    harness.advance(49.9)
    assert three == []
    harness.advance(0.1)
    assert three[0].error == ErrorCode.NONE


def test_a_pending_member_id_delays_the_join_phase_until_it_expires(harness):
    (one,) = harness.stable(1)
    pending = harness.new_id(session_timeout=8.0)
    rejoin = harness.join(one)  # the leader's join starts a rebalance
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    harness.advance(7.9)
    assert rejoin == []
    harness.advance(0.1)
    assert rejoin[0].generation_id == 2
    assert pending not in harness.group.pending_join


def test_a_silent_new_member_is_removed_after_the_new_member_join_timeout():
    harness = Harness(new_member_join_timeout=300.0)
    (one,) = harness.stable(1, session_timeout=1000.0, rebalance_timeout=900.0)
    gone = harness.join(harness.new_id(session_timeout=10.0), session_timeout=10.0, rebalance_timeout=900.0)
    harness.advance(299.0)
    assert gone == []
    harness.advance(1.0)
    assert gone[0].error == ErrorCode.UNKNOWN_MEMBER_ID
    rejoin = harness.join(one, session_timeout=1000.0, rebalance_timeout=900.0)
    assert rejoin[0].generation_id == 2


def test_the_common_protocol_with_most_votes_is_selected(harness):
    wishes = [("a", "b", "c"), ("b", "a", "c"), ("b", "c", "a"), ("c", "b", "x")]
    ids = [harness.new_id(protocols=tuple((name, name.encode()) for name in wish)) for wish in wishes]
    joins = [
        harness.join(member_id, protocols=tuple((name, name.encode()) for name in wish))
        for member_id, wish in zip(ids, wishes, strict=True)
    ]
    harness.advance(0)
    assert joins[0][0].protocol_name == "b", (
        '"a" is not supported by all, "c" is the first choice of only one'
    )
    assert {member.metadata for member in joins[0][0].members} == {b"b"}


def test_a_member_without_a_common_protocol_is_refused(harness):
    harness.stable(1, protocols=(("range", b""), ("sticky", b"")))
    (answer,) = harness.join(protocols=(("roundrobin", b""),))
    assert answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    (answer,) = harness.join(protocol_type="connect", protocols=(("range", b""),))
    assert answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    (answer,) = harness.join(protocols=(("sticky", b""),))
    assert answer.error == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": ()}])
def test_an_empty_group_needs_a_protocol(fields):
    (answer,) = Harness().join(**fields)
    assert answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (5.9, ErrorCode.INVALID_SESSION_TIMEOUT),
        (6.0, ErrorCode.MEMBER_ID_REQUIRED),
        (1800.0, ErrorCode.MEMBER_ID_REQUIRED),
        (1800.1, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_session_timeouts_have_bounds(timeout, error):
    harness = Harness(group_min_session_timeout=6.0)
    assert harness.join(session_timeout=timeout)[0].error == error


def test_join_errors_that_need_no_group(harness):
    answers = []
    from asyncgroup.broker.groups.shared.requests import JoinRequest

    harness.coordinator.join(JoinRequest(group_id="", protocols=RANGE), answers.append)
    assert answers[0].error == ErrorCode.INVALID_GROUP_ID
    assert harness.join("who")[0].error == ErrorCode.UNKNOWN_MEMBER_ID
    assert GROUP not in harness.coordinator.groups
    harness.coordinator.unload(0)
    assert harness.join()[0].error == ErrorCode.NOT_COORDINATOR


def test_an_unknown_member_of_a_known_group(harness):
    harness.stable(1)
    assert harness.join("who")[0].error == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_max_size_refuses_new_members():
    harness = Harness(group_max_size=2)
    one, two = harness.stable(2)
    assert harness.join()[0].error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.group.state is ClassicGroupState.STABLE
    harness.leave(two)
    joining = harness.join(harness.new_id())
    harness.join(one)
    assert joining[0].error == ErrorCode.NONE


def test_group_max_size_counts_members_in_the_join_phase():
    harness = Harness(group_max_size=2, initial_rebalance_delay=3.0)
    ids = [harness.new_id() for _ in range(3)]
    joins = [harness.join(member_id) for member_id in ids]
    assert joins[2][0].error == ErrorCode.GROUP_MAX_SIZE_REACHED
    harness.advance(6.0)
    assert [answer[0].error for answer in joins[:2]] == [0, 0]
    assert set(harness.group.members) == set(ids[:2])


# -- rejoining -----------------------------------------------------------------------------------------------


def test_a_follower_that_rejoins_unchanged_gets_the_present_generation(harness):
    one, two = harness.stable(2)
    (answer,) = harness.join(two)
    assert (answer.generation_id, answer.leader, answer.members) == (1, one, ())
    assert harness.group.state is ClassicGroupState.STABLE


def test_a_leader_that_rejoins_unchanged_starts_a_rebalance(harness):
    one, _ = harness.stable(2)
    assert harness.join(one) == []
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_follower_with_new_metadata_starts_a_rebalance(harness):
    _, two = harness.stable(2)
    assert harness.join(two, protocols=(("range", b"other topics"),)) == []
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_repeated_join_during_completing_rebalance_gets_the_same_response(harness):
    ids = [harness.new_id(), harness.new_id()]
    joins = [harness.join(member_id) for member_id in ids]
    harness.advance(0)
    leader = ids[0]
    for member_id, (answer,) in zip(ids, joins, strict=True):
        (again,) = harness.join(member_id)
        assert again == answer
    assert len(joins[0][0].members) == 2
    assert harness.group.leader == leader
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE


def test_new_metadata_during_completing_rebalance_restarts_the_rebalance(harness):
    ids = [harness.new_id(), harness.new_id()]
    for member_id in ids:
        harness.join(member_id)
    harness.advance(0)
    parked = harness.sync(ids[1])
    assert parked == []
    assert harness.join(ids[0], protocols=(("range", b"other"),)) == []
    assert parked[0].error == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_join_repeated_while_parked_replaces_the_first_one(harness):
    _, two = harness.stable(2)
    joining = harness.new_id()
    lost = harness.join(joining)
    again = harness.join(joining)
    assert harness.group.awaiting_join_count == 1
    harness.leave(two)
    harness.join(harness.group.leader)
    assert lost == []
    assert again[0].generation_id == 2
