"""Leaving a group, and static members (KIP-345)."""

from __future__ import annotations

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.shared.requests import LeavingMember
from asyncgroup.error_codes import ErrorCode
from tests.broker.harness import Harness

OTHER = (("range", b"other"),)


def static(harness: Harness, *instances: str, **fields) -> list[str]:
    """Create a stable group of static members; return their ids, the leader's first."""
    joins = [harness.join(group_instance_id=instance, **fields) for instance in instances]
    harness.advance(harness.config.initial_rebalance_delay)
    ids = [join[0].member_id for join in joins]
    harness.sync_all(ids)
    return ids


# -- leaving -------------------------------------------------------------------------------------------------


def test_leaving_starts_a_rebalance_for_the_others(harness):
    one, two = harness.stable(2)
    assert harness.leave(one) == [ErrorCode.NONE]
    assert harness.group.leader == two
    assert harness.heartbeat(two) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.join(two)[0].generation_id == 2


def test_several_members_leave_in_one_rebalance(harness):
    one, two, three = harness.stable(3)
    assert harness.leave(one, "who", two) == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.join(three)[0].generation_id == 2


def test_all_members_leave(harness):
    ids = harness.stable(2)
    assert harness.leave(*ids) == [0, 0]
    assert harness.group.state is ClassicGroupState.EMPTY
    assert harness.group.generation_id == 2
    assert harness.timers.keys == set()


def test_a_parked_join_is_answered_when_its_member_leaves(harness):
    one, two = harness.stable(2)
    parked = harness.join(one)
    assert harness.leave(one) == [0]
    assert parked[0].error == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join(two)[0].generation_id == 2


def test_a_parked_sync_is_answered_when_its_member_leaves(harness):
    """Found by `test_coordinator_properties`: the parked SyncGroup of the last member got no response."""
    joins = [harness.join(group_instance_id=instance) for instance in ("i1", "i2")]
    harness.advance(harness.config.initial_rebalance_delay)
    leader, follower = (join[0].member_id for join in joins)
    parked = harness.sync(follower, group_instance_id="i2")
    assert not parked
    assert harness.leave(follower) == [ErrorCode.NONE]
    assert [each.error for each in parked] == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(harness.group.members) == [leader]


def test_leaving_may_complete_the_join_phase(harness):
    one, two = harness.stable(2)
    first = harness.join(one)
    harness.leave(two)
    assert first[0].generation_id == 2


def test_a_pending_id_may_leave_and_completes_the_join_phase(harness):
    (one,) = harness.stable(1)
    pending = harness.new_id()
    first = harness.join(one)
    assert first == []
    assert harness.leave(pending) == [0]
    assert first[0].generation_id == 2


def test_leaving_a_group_that_does_not_exist(harness):
    assert harness.leave("who") == [ErrorCode.UNKNOWN_MEMBER_ID]
    result = harness.coordinator.leave("", [LeavingMember("who")])
    assert (result.error, result.members) == (ErrorCode.INVALID_GROUP_ID, ())


def test_leaving_during_the_initial_delay_ends_in_an_empty_group():
    harness = Harness(initial_rebalance_delay=3.0)
    member_id = harness.new_id()
    parked = harness.join(member_id)
    harness.leave(member_id)
    assert parked[0].error == ErrorCode.UNKNOWN_MEMBER_ID
    harness.advance(3.0)
    assert harness.group.state is ClassicGroupState.EMPTY
    again = harness.join(harness.new_id())
    harness.advance(3.0)
    assert again[0].generation_id == 2  # the empty generation is counted


# -- static members ------------------------------------------------------------------------------------------


def test_a_static_member_joins_without_an_id_of_its_own(harness):
    join = harness.join(group_instance_id="i1")
    harness.advance(0)
    assert join[0].error == ErrorCode.NONE
    assert join[0].member_id.startswith("i1-")
    assert join[0].members[0].group_instance_id == "i1"


def test_a_member_id_fits_into_a_response_even_if_the_instance_id_has_the_maximum_length(harness):
    (member_id,) = static(harness, "x" * 32_767)
    assert member_id.startswith("xxx")
    assert len(member_id) < 32_767


def test_a_returning_static_follower_does_not_start_a_rebalance(harness):
    one, two = static(harness, "i1", "i2")
    (answer,) = harness.join(group_instance_id="i2")
    assert answer.error == ErrorCode.NONE
    assert answer.generation_id == 1
    assert answer.member_id not in (one, two)
    assert (answer.leader, answer.members, answer.skip_assignment) == (one, (), False)
    assert harness.sync(answer.member_id)[0].assignment == b"1"  # the assignment of the replaced member
    assert harness.group.state is ClassicGroupState.STABLE


def test_a_returning_static_leader_gets_skip_assignment(harness):
    _, two = static(harness, "i1", "i2")
    (answer,) = harness.join(group_instance_id="i1")
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert [member.member_id for member in answer.members] == [two, answer.member_id]


def test_before_version_9_a_returning_static_leader_is_not_leader(harness):
    one, _ = static(harness, "i1", "i2")
    (answer,) = harness.join(group_instance_id="i1", supports_skipping_assignment=False)
    assert answer.leader == one
    assert answer.member_id != one
    assert (answer.members, answer.skip_assignment) == ((), False)
    assert harness.group.leader == answer.member_id


def test_a_replaced_static_member_is_fenced_everywhere(harness):
    one, two = static(harness, "i1", "i2")
    new = harness.join(group_instance_id="i2")[0].member_id
    assert harness.heartbeat(two, instance="i2") == ErrorCode.FENCED_INSTANCE_ID
    assert harness.heartbeat(two) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.sync(two, group_instance_id="i2")[0].error == ErrorCode.FENCED_INSTANCE_ID
    assert harness.join(two, group_instance_id="i2")[0].error == ErrorCode.FENCED_INSTANCE_ID
    fields = {"member_id": two, "group_instance_id": "i2", "generation_id": 1}
    assert harness.commit(**fields) == ErrorCode.FENCED_INSTANCE_ID
    assert harness.leave(LeavingMember(two, "i2")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert harness.heartbeat(new, instance="i2") == ErrorCode.NONE
    assert harness.heartbeat(one, instance="i1") == ErrorCode.NONE


def test_a_returning_static_member_with_other_topics_does_not_start_a_rebalance(harness):
    static(harness, "i1", "i2")
    (answer,) = harness.join(group_instance_id="i2", protocols=OTHER)
    assert answer.generation_id == 1
    assert harness.group.members[answer.member_id].protocols == OTHER


def test_a_static_member_that_changes_the_selected_protocol_starts_a_rebalance(harness):
    both = (("range", b""), ("sticky", b""))
    one, _ = static(harness, "i1", "i2", protocols=both)
    assert harness.group.protocol_name == "range"
    answers = harness.join(group_instance_id="i2", protocols=(("sticky", b""),))
    assert answers == []
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    first = harness.join(one, group_instance_id="i1", protocols=both)
    assert first[0].protocol_name == answers[0].protocol_name == "sticky"


def test_a_static_duplicate_during_the_join_phase_fences_the_one_that_waits(harness):
    one, two, three = static(harness, "i1", "i2", "i3")
    first = harness.join(one, group_instance_id="i1")
    waiting = harness.join(two, group_instance_id="i2")
    newer = harness.join(group_instance_id="i2")
    assert waiting[0].error == ErrorCode.FENCED_INSTANCE_ID
    assert newer == first == []
    third = harness.join(three, group_instance_id="i3")
    assert newer[0].generation_id == first[0].generation_id == third[0].generation_id == 2
    assert newer[0].member_id != two


def test_a_static_duplicate_while_the_assignment_is_made_restarts_the_rebalance(harness):
    joins = [harness.join(group_instance_id=instance) for instance in ("i1", "i2")]
    harness.advance(0)
    one, two = (join[0].member_id for join in joins)
    parked = harness.sync(two, group_instance_id="i2")
    newer = harness.join(group_instance_id="i2")
    assert parked[0].error == ErrorCode.FENCED_INSTANCE_ID
    assert newer == []
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.heartbeat(one, instance="i1") == ErrorCode.REBALANCE_IN_PROGRESS


def test_static_members_that_do_not_rejoin_stay_until_their_session_expires(harness):
    one, two = static(harness, "i1", "i2", rebalance_timeout=10.0, session_timeout=60.0)
    first = harness.join(one, group_instance_id="i1", rebalance_timeout=10.0, session_timeout=60.0)
    harness.advance(10.0)
    assert first[0].generation_id == 2
    assert {member.member_id for member in first[0].members} == {one, two}


def test_a_join_phase_without_any_returning_static_member_is_extended(harness):
    one, two = static(harness, "i1", "i2", rebalance_timeout=10.0, session_timeout=25.0)
    harness.join(harness.new_id(rebalance_timeout=10.0), rebalance_timeout=10.0)
    newcomer = next(iter(set(harness.group.members) - {one, two}))
    harness.leave(newcomer)
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    harness.advance(10.0)
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.group.generation_id == 1
    harness.advance(15.0)
    assert harness.group.state is ClassicGroupState.EMPTY


def test_an_admin_removes_a_static_member_by_its_instance_id(harness):
    one, two = static(harness, "i1", "i2")
    assert harness.leave(LeavingMember("", "i2"), LeavingMember("", "i9")) == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert set(harness.group.members) == {one}
    assert harness.heartbeat(two, instance="i2") == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("instance", ["i1", None])
def test_a_pending_id_may_not_become_static(harness, instance):
    pending = harness.new_id()
    answers = harness.join(pending, group_instance_id=instance)
    if instance is None:
        assert answers == []
    else:
        assert answers[0].error == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_static_leader_that_does_not_rejoin_in_time_is_replaced_as_leader(harness):
    one, two = static(harness, "i1", "i2", rebalance_timeout=10.0, session_timeout=60.0)
    fields = {"rebalance_timeout": 10.0, "session_timeout": 60.0}
    second = harness.join(two, group_instance_id="i2", protocols=OTHER, **fields)
    harness.advance(10.0)
    assert second[0].leader == two
    assert {member.member_id for member in second[0].members} == {one, two}
    assert harness.group.generation_id == 2


def test_a_replacement_that_could_not_be_written_is_refused(harness):
    static(harness, "i1", "i2")
    original = harness.store.write_group
    harness.coordinator._rebalance.write_group = lambda snapshot, done: (
        original(snapshot, lambda _error: None),
        done(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    )
    (answer,) = harness.join(group_instance_id="i2")
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("instance", ["i1", "i2"])
def test_a_replacement_that_could_not_be_written_is_reverted(harness, instance):
    """The old member keeps its id, protocols, timeouts and leadership."""
    one, two = static(harness, "i1", "i2", session_timeout=10.0)
    old = {"i1": one, "i2": two}[instance]
    harness.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    (answer,) = harness.join(group_instance_id=instance, protocols=OTHER, session_timeout=99.0)
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (answer.member_id, answer.generation_id, answer.protocol_name) == ("", 1, "range")
    assert harness.group.leader == one
    assert harness.group.members[old].metadata("range") == b"m"
    assert harness.heartbeat(old, instance=instance) == ErrorCode.NONE
    assert harness.sync(old, group_instance_id=instance)[0].assignment == (b"0" if old == one else b"1")
    assert harness.timers.keys == {("heartbeat", "g", one), ("heartbeat", "g", two)}
    harness.log.refuses = None
    harness.advance(10.0)
    assert old not in harness.group.members


def test_a_pending_replacement_may_be_replaced_or_lose_its_coordinator():
    harness = Harness(offsets_append_delay=1.0)
    joins = [harness.join(group_instance_id="i1")]
    harness.advance(1.0)
    syncs = harness.sync(joins[0][0].member_id, {joins[0][0].member_id: b"A"})
    harness.advance(1.0)
    assert not syncs[0].error
    first = harness.join(group_instance_id="i1")
    harness.advance(0.5)
    second = harness.join(group_instance_id="i1")
    assert first[0].error == ErrorCode.FENCED_INSTANCE_ID
    harness.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.advance(0.5)
    assert second == []
    harness.log.refuses = None
    harness.advance(0.5)
    assert second[0].error == ErrorCode.NONE
    third = harness.join(group_instance_id="i1")
    timers = harness.timers
    harness.move()
    assert third[0].error == ErrorCode.NOT_COORDINATOR
    assert timers.keys == set()
    assert set(harness.group.members) == {second[0].member_id}


def test_a_dead_group_returns_coordinator_not_available(harness):
    """A group is Dead between the decision to delete or unload it and its removal."""
    (one,) = harness.stable(1)
    harness.group.transition_to(ClassicGroupState.DEAD)
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.join(one)[0].error == error
    assert harness.join()[0].error == error
    assert harness.sync(one)[0].error == error
    assert harness.heartbeat(one) == error
    assert harness.leave(one) == [error]
    assert harness.commit(member_id=one, generation_id=1) == error
    assert harness.coordinator.offsets.committed("g") == {}
    assert harness.delete() == [ErrorCode.GROUP_ID_NOT_FOUND]
    harness.advance(1000.0)  # its timers have no effect
    assert one in harness.group.members
