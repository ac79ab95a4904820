"""Failed and slow appends to `__consumer_offsets`, slow loading, and transactional commits."""

from __future__ import annotations

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from tests.broker.harness import GROUP, Harness

T0 = TopicPartition("t", 0)

# -- failed and slow appends ----------------------------------------------------------------------------------


def in_sync_phase(**config) -> tuple[Harness, list[str]]:
    harness = Harness(offsets_append_delay=1.0, **config)
    ids = [harness.new_id(), harness.new_id()]
    for member_id in ids:
        harness.join(member_id)
    harness.advance(1.0)
    return harness, ids


def test_assignments_are_sent_only_after_they_are_written():
    harness, (one, two) = in_sync_phase()
    second, first = harness.sync(two), harness.sync(one, {one: b"A", two: b"B"})
    harness.advance(0.99)
    assert first == second == []
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE
    harness.advance(0.01)
    assert (first[0].assignment, second[0].assignment) == (b"A", b"B")
    assert harness.group.state is ClassicGroupState.STABLE


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_after_a_failed_write_of_the_assignment_the_group_rebalances(failure, error):
    harness, (one, two) = in_sync_phase()
    second, first = harness.sync(two), harness.sync(one, {one: b"A"})
    harness.log.refuses = failure
    harness.advance(1.0)
    assert {first[0].error, second[0].error} == {error}
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_an_assignment_that_is_written_too_late_is_dropped():
    harness, (one, two) = in_sync_phase()
    first = harness.sync(one, {one: b"A", two: b"B"})
    harness.leave(two)
    assert first[0].error == ErrorCode.REBALANCE_IN_PROGRESS
    harness.advance(1.0)
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert harness.group.members[one].assignment == b""


def test_a_commit_is_answered_only_after_it_is_written():
    harness = Harness(offsets_append_delay=1.0)
    answers = harness.send_commit(5)
    assert answers == []
    assert harness.coordinator.offsets.committed(GROUP) == {}
    harness.advance(1.0)
    assert answers == [ErrorCode.NONE]
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 5


def test_a_failed_commit_creates_no_group(harness):
    harness.log.refuses = ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.commit(5) == ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.groups == {}
    harness.log.refuses = None
    assert harness.commit(6) == ErrorCode.NONE
    harness.log.refuses = ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.commit(7) == ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 6


def test_a_group_whose_first_write_fails_is_removed(harness):
    harness.log.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.join()
    assert harness.coordinator.groups == {}
    parked = harness.join(group_instance_id="i")
    assert parked[0].error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE)


def test_a_commit_that_is_pending_when_the_partition_moves_is_rejected_and_lost():
    harness = Harness(offsets_append_delay=1.0)
    harness.send_commit(1)
    harness.advance(1.0)
    answers = harness.send_commit(2)
    harness.advance(0.5)
    harness.move()
    assert answers == [ErrorCode.NOT_COORDINATOR]
    harness.advance(10.0)
    assert answers == [ErrorCode.NOT_COORDINATOR]
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 1


def test_writes_that_are_pending_when_the_node_crashes_are_lost_and_not_answered():
    harness, (one, two) = in_sync_phase()
    syncs = [harness.sync(two), harness.sync(one, {one: b"A", two: b"B"})]
    harness.advance(0.5)
    harness.crash()
    harness.advance(10.0)
    assert syncs == [[], []]
    assert harness.group.generation_id == 0


def test_delayed_appends_keep_their_order():
    harness = Harness(offsets_append_delay=1.0)
    for offset in range(1, 6):
        harness.send_commit(offset)
    harness.advance(1.0)
    assert harness.coordinator.offsets.committed(GROUP)[T0].offset == 5
    assert [record.offset for record in read_records(harness.log.log)] == [0, 1, 2, 3, 4]


def test_a_group_that_is_deleted_while_a_commit_is_pending():
    harness = Harness(offsets_append_delay=1.0)
    harness.send_commit(1)
    harness.advance(1.0)
    first = harness.send_commit(2, partition=1)
    deleted = harness.delete()
    last = harness.send_commit(3, partition=2)
    harness.advance(1.0)
    assert first == deleted == last == [ErrorCode.NONE]
    assert set(harness.coordinator.offsets.committed(GROUP)) == {TopicPartition("t", 2)}
    harness.move()
    assert set(harness.coordinator.offsets.committed(GROUP)) == {TopicPartition("t", 2)}


# -- loading ---------------------------------------------------------------------------------------------------


def test_a_loading_coordinator_answers_with_load_in_progress():
    harness = Harness(offsets_load_delay=2.0)
    harness.advance(2.0)
    (one,) = harness.stable(1)
    harness.commit(4, member_id=one, generation_id=1)
    harness.move()
    coordinator, loading = harness.coordinator, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.error_for(GROUP) is loading
    assert harness.join(one)[0].error is loading
    assert harness.commit(5, member_id=one, generation_id=1) is loading
    assert harness.delete() == [loading]
    assert coordinator.leave(GROUP, []).error is loading
    assert coordinator.heartbeat(GROUP, RequestMember(one, 1)) is ErrorCode.NONE  # as in Kafka
    harness.advance(2.0)
    assert harness.heartbeat(one) is ErrorCode.NONE
    assert coordinator.offsets.committed(GROUP)[T0].offset == 4


def test_a_partition_that_moves_away_while_it_is_being_loaded():
    harness = Harness(offsets_load_delay=2.0)
    harness.advance(1.0)
    harness.coordinator.unload(0)
    harness.advance(5.0)
    assert harness.coordinator.error_for(GROUP) is ErrorCode.NOT_COORDINATOR


# -- transactional commits -------------------------------------------------------------------------------------


def test_checks_of_transactional_commits(harness):
    transactional = {"producer_id": 7, "producer_epoch": 0}
    assert harness.commit(1, generation_id=1, member_id="m", **transactional) == ErrorCode.ILLEGAL_GENERATION
    assert harness.coordinator.groups == {}
    (one,) = harness.stable(1)
    assert harness.commit(1, generation_id=1, member_id="who", **transactional) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.commit(1, generation_id=2, member_id=one, **transactional) == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit(1, generation_id=1, member_id=one, **transactional) == ErrorCode.NONE
    assert harness.commit(2, **transactional) == ErrorCode.NONE  # early versions name no member
    harness.coordinator.unload(0)
    assert harness.commit(3, **transactional) == ErrorCode.NOT_COORDINATOR


def test_a_producer_with_an_older_epoch_is_rejected(harness):
    assert harness.commit(1, producer_id=7, producer_epoch=3) == ErrorCode.NONE
    assert harness.commit(2, producer_id=7, producer_epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert harness.commit(3, producer_id=7, producer_epoch=3) == ErrorCode.NONE


def test_a_commit_that_is_pending_when_its_transaction_ends_is_rejected():
    harness = Harness(offsets_append_delay=1.0)
    late = harness.send_commit(1, producer_id=7, producer_epoch=0)
    other = harness.send_commit(2, partition=1)
    harness.log.end_transaction(harness.coordinator, 7, commit=True)
    harness.advance(1.0)
    assert (late, other) == ([ErrorCode.INVALID_TXN_STATE], [ErrorCode.NONE])
    assert set(harness.coordinator.offsets.committed(GROUP)) == {TopicPartition("t", 1)}


def test_a_member_that_joins_while_the_group_is_being_deleted_stays():
    harness = Harness(offsets_append_delay=1.0)
    harness.send_commit(1)
    harness.advance(1.0)
    deleted = harness.delete()
    harness.join(group_instance_id="i")
    harness.advance(5.0)
    assert deleted == [ErrorCode.NONE]
    assert set(harness.group.static_members) == {"i"}
    assert harness.coordinator.offsets.committed(GROUP) == {}


def test_reprs(harness):
    harness.commit(1)
    assert repr(harness.coordinator) == "<GroupCoordinator partitions=1 groups=1>"
    assert repr(harness.store) == "<OffsetStore 1 partitions>"
    assert repr(harness.coordinator._groups) == "<ClassicGroups 1>"
    assert repr(harness.store._partitions[0].replayed) == "<ReplayedPartition 0 1 groups, 1 offsets>"
