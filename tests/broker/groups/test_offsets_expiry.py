"""Expiration of offsets and of empty groups, and OffsetDelete (KIP-211, KIP-496)."""

from __future__ import annotations

import math

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.group_member import GroupMember
from asyncgroup.broker.groups.offsets import expired_offsets
from asyncgroup.broker.groups.shared.requests import ClientDetails, MemberTimeouts, OffsetAndMetadata
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned
from tests.broker.harness import GROUP, Harness

T, U = TopicPartition("t", 0), TopicPartition("u", 0)
DAY = 24 * 3600.0
WEEK = 7 * DAY


def subscribed_to(*topics: str) -> tuple[tuple[str, bytes], ...]:
    """Return the protocols of a JoinGroup with a subscription to these topics."""
    return (("range", encode_versioned(m.ConsumerProtocolSubscription(topics=list(topics)), 1)),)


# -- the rules -------------------------------------------------------------------------------------------------


def group_in(
    state: ClassicGroupState, protocol_type: str | None = "consumer", *subscriptions
) -> ClassicGroup:
    group = ClassicGroup("g")
    for number, protocols in enumerate(subscriptions):
        group.add(
            GroupMember(
                member_id=str(number),
                group_instance_id=None,
                client=ClientDetails(),
                timeouts=MemberTimeouts(1.0, 1.0),
                protocol_type=protocol_type or "",
                protocols=protocols,
            )
        )
    group.protocol_type = protocol_type
    group.protocol_name = "range" if subscriptions else None
    group.compute_subscribed_topics()
    group.state = state
    return group


def expired(group: ClassicGroup, now: int, retention: int = 100, unstable=(), **offset) -> bool:
    offsets = {T: OffsetAndMetadata(1, **{"commit_timestamp": 1000, **offset})}
    return expired_offsets(group, offsets, unstable, now, retention) == [T]


def test_with_manual_assignment_an_offset_expires_a_retention_after_its_commit():
    group = group_in(ClassicGroupState.EMPTY, None)
    group.current_state_timestamp = 1090
    assert not expired(group, 1099)
    assert expired(group, 1100)


def test_offsets_of_an_empty_group_expire_a_retention_after_it_became_empty():
    group = group_in(ClassicGroupState.EMPTY)
    group.current_state_timestamp = 5000
    assert not expired(group, 5099)
    assert expired(group, 5100)
    group.current_state_timestamp = -1  # written before Kafka 2.1
    assert expired(group, 1100)


def test_a_stable_group_keeps_the_offsets_of_its_topics():
    assert not expired(group_in(ClassicGroupState.STABLE, "consumer", subscribed_to("t", "v")), 10**9)
    group = group_in(ClassicGroupState.STABLE, "consumer", subscribed_to("u"), subscribed_to("v"))
    assert not expired(group, 1099)
    assert expired(group, 1100)


@pytest.mark.parametrize(
    "state", [ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.COMPLETING_REBALANCE]
)
def test_a_rebalancing_group_keeps_all_offsets(state):
    assert not expired(group_in(state, "consumer", subscribed_to("u")), 10**9)


def test_a_live_group_with_unknown_subscriptions_keeps_all_offsets():
    assert not expired(group_in(ClassicGroupState.STABLE, "connect", (("range", b""),)), 10**9)
    assert not expired(group_in(ClassicGroupState.STABLE, "consumer", (("range", b"\x00"),)), 10**9)


def test_an_offset_with_an_expire_timestamp_expires_then():
    group = group_in(ClassicGroupState.EMPTY)
    group.current_state_timestamp = 5000
    assert not expired(group, 1999, expire_timestamp=2000)
    assert expired(group, 2000, expire_timestamp=2000)
    assert not expired(group, 10**9, expire_timestamp=10**10)


def test_an_offset_in_an_open_transaction_does_not_expire():
    assert not expired(group_in(ClassicGroupState.EMPTY, None), 10**9, unstable={T})


def test_the_subscribed_topics_of_a_group():
    live = group_in(ClassicGroupState.STABLE, "consumer", subscribed_to("t"), subscribed_to("u"))
    assert live.subscribed_topics == {"t", "u"}
    assert not live.is_subscribed_to("v")
    assert group_in(ClassicGroupState.EMPTY).subscribed_topics == frozenset()
    other = group_in(ClassicGroupState.STABLE, "connect", subscribed_to("t"))
    assert other.subscribed_topics is None
    assert not other.is_subscribed_to("t")
    unreadable = group_in(ClassicGroupState.STABLE, "consumer", (("range", b"\x00"),))
    assert unreadable.subscribed_topics is None
    assert unreadable.is_subscribed_to("anything")


def test_a_rebalancing_group_keeps_the_subscribed_topics_of_its_generation(harness):
    """Like `ClassicGroup.subscribedTopics`, which is computed at the end of the join phase."""
    (one,) = harness.stable(1, protocols=subscribed_to("t"))
    harness.commit(1, member_id=one, generation_id=1)
    new = harness.new_id(protocols=subscribed_to("u"))
    harness.join(new, protocols=subscribed_to("u"))
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.group.subscribed_topics == {"t"}
    harness.join(one, protocols=subscribed_to("v"))
    assert harness.group.subscribed_topics == {"u", "v"}
    harness.move()
    assert harness.group.subscribed_topics == {"t"}


# -- with a coordinator----------------------------------------------------------------------------------------


def written(harness: Harness) -> list[tuple[bytes, bool]]:
    """Return the records of the log: key, and whether it is a tombstone."""
    records = list(read_records(harness.log.log))
    return [(bytes(r.key or b""), r.value is None) for r in records]


def test_offsets_and_groups_expire_after_a_week(harness):
    harness.commit(3)
    harness.advance(WEEK - 1)
    assert T in harness.coordinator.offsets.committed(GROUP)
    harness.advance(601)
    assert harness.coordinator.groups == {}
    assert [tombstone for _, tombstone in written(harness)] == [False, True, True]
    harness.move()
    assert harness.coordinator.groups == {}
    assert harness.timers.next_deadline() is None  # without groups there are no more checks


def test_a_new_commit_restarts_the_retention(harness):
    harness.commit(3)
    harness.advance(WEEK - 1)
    harness.commit(4)
    harness.advance(WEEK - 1)
    assert harness.coordinator.offsets.committed(GROUP)[T].offset == 4


def test_retention_and_check_interval_can_be_set():
    harness = Harness(offsets_retention=60.0, offsets_retention_check_interval=5.0)
    harness.advance(1.0)
    harness.commit(3)
    harness.advance(59.0)
    assert GROUP in harness.coordinator.groups
    harness.advance(5.0)
    assert harness.coordinator.groups == {}


def test_an_infinite_retention_keeps_offsets():
    harness = Harness(offsets_retention=math.inf)
    harness.commit(3)
    harness.advance(100 * WEEK)
    assert harness.committed() == {T: 3}


def test_offsets_of_a_topic_without_subscribers_expire_in_a_live_group():
    harness = Harness(group_max_session_timeout=20 * DAY)
    fields = {"protocols": subscribed_to("t"), "session_timeout": 20 * DAY}
    (one,) = harness.stable(1, **fields)
    harness.commit(1, member_id=one, generation_id=1)
    harness.commit(2, topic="u", member_id=one, generation_id=1)
    harness.advance(WEEK + 600)
    assert set(harness.coordinator.offsets.committed(GROUP)) == {T}
    assert harness.group.state is ClassicGroupState.STABLE
    harness.move()
    assert set(harness.coordinator.offsets.committed(GROUP)) == {T}


def test_the_retention_of_an_empty_group_survives_a_move():
    harness = Harness(group_max_session_timeout=20 * DAY)
    (one,) = harness.stable(1, session_timeout=20 * DAY)
    harness.commit(1, member_id=one, generation_id=1)
    harness.advance(WEEK - 1000)
    harness.leave(one)
    harness.advance(DAY)
    harness.move()
    harness.advance(WEEK - DAY - 1)
    assert T in harness.coordinator.offsets.committed(GROUP)
    harness.advance(601)
    assert harness.coordinator.groups == {}


def test_an_empty_group_without_offsets_is_removed_by_the_next_check(harness):
    (one,) = harness.stable(1)
    harness.leave(one)
    harness.advance(600)
    assert harness.coordinator.groups == {}


def test_a_group_with_an_open_transaction_does_not_expire(harness):
    harness.commit(1)
    harness.commit(2, producer_id=7, producer_epoch=0)
    harness.advance(2 * WEEK)
    assert set(harness.store.unstable_partitions(GROUP)) == {T}
    assert harness.coordinator.offsets.committed(GROUP)[T].offset == 1
    harness.log.end_transaction(harness.coordinator, 7, commit=False)
    harness.advance(600)
    assert harness.coordinator.groups == {}


def test_a_commit_with_its_own_retention(harness):
    harness.commit(1, retention=30.0)
    harness.move()
    harness.advance(600)
    assert harness.coordinator.groups == {}
    harness.commit(1, retention=0.0)
    harness.advance(600)
    assert harness.coordinator.groups == {}


# -- expiration and pending commits---------------------------------------------------------------------------------------


@pytest.mark.parametrize("producer", [{}, {"producer_id": 7, "producer_epoch": 0}])
def test_an_expired_offset_is_kept_if_a_new_commit_is_not_replicated_yet(producer):
    harness = Harness(offsets_retention=3600.0, offsets_retention_check_interval=600.0)
    harness.commit(3)
    harness.commit(3, topic="u")
    harness.advance(3590)
    harness.hold_followers()
    answers = harness.send_commit(4, **producer)
    harness.advance(20)
    harness.release_followers()
    if producer:
        harness.log.end_transaction(harness.coordinator, 7, commit=True)
    assert answers in ([ErrorCode.NONE], [ErrorCode.COORDINATOR_NOT_AVAILABLE])
    assert harness.committed() == {T: 4}
    harness.move()
    assert harness.committed() == {T: 4}


@pytest.mark.parametrize("first", [True, False])
def test_an_expired_offset_is_kept_if_a_new_commit_is_not_appended_yet(first):
    """With `first`, the commit is the first one of the group."""
    harness = Harness(
        offsets_retention=3600.0, offsets_retention_check_interval=600.0, offsets_append_delay=50.0
    )
    if not first:
        harness.send_commit(3)
    else:
        harness.new_id()  # creates the group, which the next check looks at
    harness.advance(590 if first else 3590)
    answers = harness.send_commit(4)
    harness.advance(100)
    assert answers == [ErrorCode.NONE]
    assert harness.committed() == {T: 4}
    harness.move()
    assert harness.committed() == {T: 4}


def test_a_group_whose_first_commit_is_not_replicated_yet_is_not_removed():
    harness = Harness(offsets_retention_check_interval=600.0)
    harness.new_id()
    harness.advance(595)
    harness.hold_followers()
    answers = harness.send_commit(4)
    harness.advance(10)
    assert GROUP in harness.coordinator.groups
    harness.release_followers()
    assert (len(answers), harness.committed()) == (1, {T: 4})
    harness.move()
    assert harness.committed() == {T: 4}


def test_a_group_with_a_new_member_is_not_removed_by_a_pending_removal():
    harness = Harness(offsets_retention_check_interval=600.0, offsets_append_delay=50.0)
    one = harness.new_id(session_timeout=1800.0)
    harness.advance(610)  # its tombstone is due at 650 s
    harness.join(one, session_timeout=1800.0, rebalance_timeout=600.0)
    harness.advance(60)
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE
    assert [tombstone for _, tombstone in written(harness)] == [False]
    harness.move()
    assert GROUP in harness.coordinator.groups


def test_the_checks_go_on_after_an_error():
    harness = Harness(offsets_retention=3600.0, offsets_retention_check_interval=600.0)
    harness.commit(3)
    harness.advance(3550)
    harness.store.offsets = None  # stands for any bug
    with pytest.raises(TypeError):
        harness.advance(100)
    del harness.store.offsets
    harness.advance(600)
    assert harness.coordinator.groups == {}


def test_offset_delete_includes_pending_commits():
    for config in ({}, {"offsets_append_delay": 50.0}):
        harness = Harness(**config)
        harness.send_commit(1, topic="u")
        harness.advance(100)
        if not config:
            harness.hold_followers()
        answers = harness.send_commit(2)
        deleted = harness.delete_offsets(T, TopicPartition("t", 5))
        if config:
            harness.advance(100)
        else:
            harness.release_followers()
        assert answers == [ErrorCode.NONE]
        assert deleted == [{T: ErrorCode.NONE, TopicPartition("t", 5): ErrorCode.NONE}]
        assert harness.committed() == {U: 1}
        harness.move()
        assert harness.committed() == {U: 1}


# -- deleting offsets ------------------------------------------------------------------------------------------


def test_offset_delete(harness):
    assert harness.delete_offsets(T) == [ErrorCode.GROUP_ID_NOT_FOUND]
    harness.commit(1)
    harness.commit(2, topic="u")
    assert harness.delete_offsets(T, TopicPartition("t", 5)) == [{T: 0, TopicPartition("t", 5): 0}]
    assert set(harness.coordinator.offsets.committed(GROUP)) == {U}
    harness.move()
    assert set(harness.coordinator.offsets.committed(GROUP)) == {U}


def test_offset_delete_keeps_the_offsets_of_subscribed_topics(harness):
    (one,) = harness.stable(1, protocols=subscribed_to("t"))
    harness.commit(1, member_id=one, generation_id=1)
    harness.commit(1, topic="u", member_id=one, generation_id=1)
    assert harness.delete_offsets(T, U) == [{T: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, U: 0}]
    assert set(harness.coordinator.offsets.committed(GROUP)) == {T}
    harness.leave(one)
    assert harness.delete_offsets(T) == [{T: 0}]


def test_offset_delete_rejects_a_live_group_that_is_not_a_consumer_group(harness):
    harness.stable(1, protocol_type="connect")
    assert harness.delete_offsets(T) == [ErrorCode.NON_EMPTY_GROUP]


def test_offset_delete_includes_offsets_in_an_open_transaction(harness):
    harness.commit(2, producer_id=7, producer_epoch=0)
    assert harness.delete_offsets(T) == [{T: 0}]
    harness.log.end_transaction(harness.coordinator, 7, commit=True)
    assert harness.coordinator.offsets.committed(GROUP) == {}
