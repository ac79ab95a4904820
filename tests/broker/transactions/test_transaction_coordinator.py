"""The transaction coordinator without a network: states, fencing, timeouts, markers that wait for a leader."""

from __future__ import annotations

import random

import pytest

from asyncgroup.broker.groups.shared.requests import OffsetAndMetadata
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.broker.groups.store.offsets_topic import OffsetsTopic
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.topics import OFFSETS_PARTITIONS
from asyncgroup.broker.transactions.completion import MarkerWriter
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator
from asyncgroup.broker.transactions.metadata import (
    LAST_EPOCH,
    NO_PRODUCER,
    ProducerIdAndEpoch,
    TransactionState,
)
from asyncgroup.broker.transactions.store import MIN_EXPIRY_SCAN
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from tests.broker.batches import append
from tests.broker.harness import FakeTimers
from tests.broker.transactional import transactional

NAME = "tx"
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class Listener:
    """A node's listener, which forwards changes of partitions to the transaction coordinator."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self.coordinator = coordinator

    def partition_changed(self, partition) -> None:
        self.coordinator.partition_changed(TopicPartition(partition.topic, partition.index))

    def coordinator_elected(self, _offsets_partition: int) -> None: ...

    def coordinator_resigned(self, _offsets_partition: int) -> None: ...


class Harness:
    """A coordinator on one node, a topic with two partitions, and fake timers."""

    def __init__(self) -> None:
        self.timers = FakeTimers()
        self.controller = Controller(
            (1, 2), random.Random(1), default_partitions=2, default_replication_factor=1
        )
        topic = OffsetsTopic(1, self.controller, self._note, self._clock)
        self.store = OffsetStore(
            topic, self.timers, self.controller.coordinators.offsets_partition, self._clock
        )
        self.appended: list[TopicPartition] = []
        markers = MarkerWriter(self.controller, self._offsets_ended, self._note, self._clock)
        self.coordinator = TransactionCoordinator(self.controller, self.timers, markers)
        self.listener = Listener(self.coordinator)
        self.controller.node_up(1, self.listener)
        for offsets_partition in range(OFFSETS_PARTITIONS):
            self.store.load(offsets_partition)
        self.topic = self.controller.create_topic("t", 2)

    def _clock(self) -> int:
        return int(self.timers.now * 1000)

    def _offsets_ended(self, partition: int, marker) -> None:
        self.store.end_transaction(marker.producer.id, partition, commit=marker.commit)

    def _note(self, partition) -> None:
        self.appended.append(TopicPartition(partition.topic, partition.index))

    @property
    def state(self) -> TransactionState:
        return self.coordinator.transactions[NAME].state

    def log(self, partition: int = 0):
        return self.topic.partitions[partition].log

    def init(self, expected: ProducerIdAndEpoch = NO_PRODUCER, timeout: float = 60.0) -> ProducerIdAndEpoch:
        error, producer = self.coordinator.init_producer_id(NAME, timeout, expected)
        assert error is ErrorCode.NONE
        return producer

    def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> ErrorCode:
        return self.coordinator.add_partitions(NAME, producer, partitions or (T0,))

    def write(self, producer: ProducerIdAndEpoch, partition: int = 0) -> None:
        data = transactional(b"v", producer_id=producer.id, epoch=producer.epoch)
        append(self.log(partition), data, 0)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_a_transaction_from_init_to_its_markers(harness):
    producer = harness.init()
    assert producer.epoch == 0
    assert harness.state is TransactionState.EMPTY
    assert harness.add(producer, T0, T1) is ErrorCode.NONE
    assert harness.state is TransactionState.ONGOING
    harness.write(producer)
    assert harness.log().last_stable_offset == 0
    assert harness.coordinator.end(NAME, producer, commit=True) == (ErrorCode.NONE, producer)
    assert harness.state is TransactionState.COMPLETE_COMMIT
    assert harness.appended == [T0, T1]
    assert (harness.log().last_stable_offset, harness.log(1).end_offset) == (2, 1)
    # the response may have been lost: the request is retried
    assert harness.coordinator.end(NAME, producer, commit=True) == (ErrorCode.NONE, producer)
    assert harness.coordinator.end(NAME, producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert harness.add(producer) is ErrorCode.NONE
    assert harness.coordinator.end(NAME, producer, commit=False).error is ErrorCode.NONE
    assert harness.state is TransactionState.COMPLETE_ABORT
    assert harness.timers.keys == set()


def test_errors_of_unknown_and_fenced_producers(harness):
    producer = harness.init()
    unknown, fenced = ProducerIdAndEpoch(99, 0), ProducerIdAndEpoch(producer.id, producer.epoch + 1)
    for other, error in (
        (unknown, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (fenced, ErrorCode.PRODUCER_FENCED),
    ):
        assert harness.add(other) is error
        assert harness.coordinator.verify(NAME, other, T0) is error
        assert harness.coordinator.end(NAME, other, commit=True).error is error
        assert harness.coordinator.end_and_bump(NAME, other, commit=True).error is error
    assert harness.coordinator.add_partitions("?", producer, ()) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.coordinator.verify("?", producer, T0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for end in (harness.coordinator.end, harness.coordinator.end_and_bump):
        assert end("?", producer, commit=True).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.coordinator.end(NAME, producer, commit=True).error is ErrorCode.INVALID_TXN_STATE
    assert harness.coordinator.verify(NAME, producer, T0) is ErrorCode.TRANSACTION_ABORTABLE
    harness.add(producer)
    assert harness.coordinator.verify(NAME, producer, T0) is ErrorCode.NONE
    assert harness.coordinator.verify(NAME, producer, T1) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("timeout", [0.0, -1.0, 900.1])
def test_invalid_timeouts(harness, timeout):
    error, _ = harness.coordinator.init_producer_id(NAME, timeout)
    assert error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not harness.coordinator.transactions


def test_a_second_producer_with_the_same_transactional_id_fences_the_first(harness):
    first = harness.init()
    harness.add(first)
    harness.write(first)
    assert harness.coordinator.init_producer_id(NAME, 60.0).error is ErrorCode.CONCURRENT_TRANSACTIONS
    # aborted with an epoch that no producer gets, so that the first one cannot write any more
    assert harness.state is TransactionState.COMPLETE_ABORT
    assert harness.log().last_stable_offset == harness.log().end_offset == 2
    assert not harness.log().producers.is_open(*first)
    second = harness.init()
    assert second == (first.id, first.epoch + 2)
    assert harness.add(first) is ErrorCode.PRODUCER_FENCED
    assert harness.coordinator.end(NAME, first, commit=True).error is ErrorCode.PRODUCER_FENCED
    assert harness.add(second) is ErrorCode.NONE


def test_a_transaction_that_takes_too_long_is_aborted(harness):
    producer = harness.init(timeout=10.0)
    harness.timers.advance(100.0)
    harness.add(producer)
    harness.write(producer)
    harness.timers.advance(9.9)
    harness.add(producer, T1)  # does not restart the timeout
    assert harness.state is TransactionState.ONGOING
    harness.timers.advance(0.1)
    assert harness.state is TransactionState.COMPLETE_ABORT
    assert harness.appended == [T0, T1]
    assert harness.coordinator.end(NAME, producer, commit=True).error is ErrorCode.PRODUCER_FENCED
    ended = harness.coordinator.end_and_bump(NAME, producer, commit=False)
    assert ended == (
        ErrorCode.NONE,
        ProducerIdAndEpoch(producer.id, producer.epoch + 1),
    )  # as if the producer had aborted it
    assert harness.init(expected=producer) == ended.producer
    assert harness.init().epoch == producer.epoch + 2


def test_init_with_the_expected_producer_id_and_epoch(harness):
    """KIP-360: the producer gets the next epoch, a retry changes nothing, older producers are fenced."""
    first = harness.init()
    second = harness.init(expected=first)
    assert second == (first.id, first.epoch + 1)
    assert harness.init(expected=first) == second
    third = harness.init(expected=second)
    assert third.epoch == second.epoch + 1
    for old in (first, ProducerIdAndEpoch(99, 0)):
        result = harness.coordinator.init_producer_id(NAME, 60.0, old)
        assert result.error is ErrorCode.PRODUCER_FENCED
    # a producer without expected id and epoch fences all others, including the last one
    newest = harness.init()
    assert harness.coordinator.init_producer_id(NAME, 60.0, third).error is ErrorCode.PRODUCER_FENCED
    assert newest.epoch == third.epoch + 1


def test_a_producer_with_exhausted_epochs_gets_a_new_id(harness):
    first = harness.init()
    found = harness.coordinator.transactions[NAME]
    found.producer = last = ProducerIdAndEpoch(first.id, LAST_EPOCH)
    second = harness.init(expected=last)
    assert second.id != first.id
    assert second.epoch == 0
    # the response was lost: it retries with its old id
    assert harness.init(expected=last) == second


# -- KIP-890: every transaction bumps the epoch ----------------------------------------------------------------


def test_each_end_bumps_the_epoch(harness):
    producer = harness.init()
    harness.add(producer)
    harness.write(producer)
    end = harness.coordinator.end_and_bump
    after = end(NAME, producer, commit=True)
    assert after == (ErrorCode.NONE, ProducerIdAndEpoch(producer.id, 1))
    assert end(NAME, producer, commit=True) == after  # a retry
    assert end(NAME, producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert harness.add(producer) is ErrorCode.PRODUCER_FENCED
    assert not harness.log().producers.is_open(*producer)
    harness.write(after.producer)  # sequence numbers restart at 0
    assert harness.add(after.producer) is ErrorCode.NONE
    assert end(NAME, after.producer, commit=False) == (ErrorCode.NONE, ProducerIdAndEpoch(producer.id, 2))


def test_an_empty_abort_bumps_the_epoch_and_an_empty_commit_is_rejected(harness):
    producer = harness.init()
    assert harness.coordinator.end_and_bump(NAME, producer, commit=True).error is ErrorCode.INVALID_TXN_STATE
    after = harness.coordinator.end_and_bump(NAME, producer, commit=False)
    assert after == (ErrorCode.NONE, ProducerIdAndEpoch(producer.id, 1))
    assert harness.appended == []
    assert harness.state is TransactionState.COMPLETE_ABORT
    again = harness.coordinator.end_and_bump(NAME, after.producer, commit=False)
    assert again.producer.epoch == 2
    assert harness.coordinator.end_and_bump(NAME, producer, commit=False).error is ErrorCode.PRODUCER_FENCED


def test_a_transaction_in_the_last_epoch_ends_with_a_new_id(harness):
    harness.init()
    found = harness.coordinator.transactions[NAME]
    found.producer = last = ProducerIdAndEpoch(found.producer.id, LAST_EPOCH)
    harness.add(last)
    harness.write(last)
    after = harness.coordinator.end_and_bump(NAME, last, commit=True)
    assert after.error is ErrorCode.NONE
    assert after.producer.id != last.id
    assert after.producer.epoch == 0
    assert harness.coordinator.end_and_bump(NAME, last, commit=True) == after
    assert harness.log().last_stable_offset == harness.log().end_offset
    assert harness.add(after.producer) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("add_partition", "abortable", "prepared", "expected"),
    [
        (False, False, False, ErrorCode.INVALID_TXN_STATE),
        (False, True, False, ErrorCode.TRANSACTION_ABORTABLE),
        (True, True, False, ErrorCode.NONE),
        (False, True, True, ErrorCode.NOT_ENOUGH_REPLICAS),
        (True, True, True, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_add_or_verify_of_a_partition_that_was_not_added(
    harness, add_partition, abortable, prepared, expected
):
    producer = harness.init()
    if prepared:
        harness.add(producer, T1)
        harness.controller.node_down(1)
        harness.coordinator.end(NAME, producer, commit=True)
    error = harness.coordinator.add_or_verify(
        NAME, producer, T0, add_partition=add_partition, supports_abortable_error=abortable
    )
    assert error is expected
    fenced = ProducerIdAndEpoch(producer.id, producer.epoch + 1)
    error = harness.coordinator.add_or_verify(
        NAME, fenced, T0, add_partition=add_partition, supports_abortable_error=abortable
    )
    assert error is ErrorCode.INVALID_PRODUCER_EPOCH
    error = harness.coordinator.add_or_verify(
        None, producer, T0, add_partition=add_partition, supports_abortable_error=abortable
    )
    assert error is ErrorCode.INVALID_TXN_STATE


# -- markers that wait -----------------------------------------------------------------------------------------


def test_a_marker_waits_for_a_leader(harness):
    producer = harness.init()
    harness.add(producer, T0, T1)
    harness.write(producer)
    harness.controller.node_down(1)
    assert harness.coordinator.end(NAME, producer, commit=True).error is ErrorCode.NONE
    assert harness.state is TransactionState.PREPARE_COMMIT
    for error in (
        harness.add(producer),
        harness.coordinator.end(NAME, producer, commit=True).error,
        harness.coordinator.init_producer_id(NAME, 60.0).error,
    ):
        assert error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert harness.coordinator.end(NAME, producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    harness.controller.node_up(1, harness.listener)
    assert harness.state is TransactionState.COMPLETE_COMMIT
    assert harness.log().last_stable_offset == harness.log().end_offset == 2


def test_a_deleted_topic_needs_no_marker(harness):
    producer = harness.init()
    harness.add(producer, T0)
    harness.controller.node_down(1)
    harness.coordinator.end_and_bump(NAME, producer, commit=False)
    assert harness.state is TransactionState.PREPARE_ABORT
    harness.controller.node_up(2, harness.listener)
    harness.controller.delete_topic(harness.topic)
    assert harness.state is TransactionState.COMPLETE_ABORT
    after = harness.init()
    harness.add(after, T0)
    assert harness.coordinator.end(NAME, after, commit=True).error is ErrorCode.NONE
    assert harness.state is TransactionState.COMPLETE_COMMIT


def test_each_transactional_id_has_a_coordinating_node(harness):
    names = [f"tx-{number}" for number in range(20)]
    assert {harness.coordinator.coordinator_of(name) for name in names} == {1}
    harness.controller.node_up(2, harness.listener)
    # Coordinators do not move back by themselves, like leaders.
    assert {harness.coordinator.coordinator_of(name) for name in names} == {1}
    harness.controller.coordinators.assign_evenly(harness.controller.alive)
    assert {harness.coordinator.coordinator_of(name) for name in names} == {1, 2}
    for name in names:
        node = harness.coordinator.coordinator_of(name)
        assert harness.coordinator.error_for(name, node) is ErrorCode.NONE
        assert harness.coordinator.error_for(name, 3 - node) is ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.error_for("", 1) is ErrorCode.INVALID_REQUEST
    harness.controller.node_down(1)
    harness.controller.node_down(2)
    assert harness.coordinator.coordinator_of(names[0]) == -1


def test_an_unused_transactional_id_expires(harness):
    day = 86_400
    producer = harness.init()
    harness.timers.advance(6 * day)
    harness.add(producer, T0)
    assert harness.coordinator.end(NAME, producer, commit=True).error is ErrorCode.NONE
    harness.timers.advance(6 * day)
    assert harness.init() == producer.bumped
    assert list(harness.coordinator.transactions) == [NAME]
    harness.timers.advance(7 * day)
    assert harness.coordinator.add_partitions(NAME, producer.bumped, [T0]) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    assert list(harness.coordinator.transactions) == []
    again = harness.init()
    assert (again.id != producer.id, again.epoch) == (True, 0)


# -- offsets of a group -----------------------------------------------------------------------------------------


def test_offsets_take_effect_when_the_transaction_is_committed(harness):
    producer = harness.init()

    def commit(offset: int, commit: bool) -> None:
        harness.add(producer, harness.coordinator.offsets_topic_partition("g"))
        pending = {T0: OffsetAndMetadata(offset)}
        harness.store.write_offsets("g", pending, lambda _error: None, producer)
        assert set(harness.store.unstable_partitions("g")) == {T0}
        assert not harness.store.unstable_partitions("other")
        harness.coordinator.end(NAME, producer, commit=commit)
        assert not harness.store.unstable_partitions("g")

    commit(5, True)
    assert harness.store.offsets("g")[T0].offset == 5
    commit(9, False)
    assert harness.store.offsets("g")[T0].offset == 5


def test_a_later_commit_wins_over_a_pending_one(harness):
    store = harness.store
    offsets_partition = harness.controller.coordinators.offsets_partition("g")
    for producer_id, offset in ((1, 5), (2, 6)):
        pending = {T0: OffsetAndMetadata(offset)}
        store.write_offsets("g", pending, lambda _error: None, (producer_id, 0))
    store.end_transaction(2, offsets_partition, commit=True)
    store.end_transaction(1, offsets_partition, commit=True)  # its commit was written first
    assert store.offsets("g")[T0].offset == 6
    store.write_offsets("g", {T0: OffsetAndMetadata(7)}, lambda _error: None, (1, 0))
    store.write_offsets("g", {T0: OffsetAndMetadata(3)}, lambda _error: None)
    store.end_transaction(1, (offsets_partition + 1) % 50, commit=True)
    assert set(store.unstable_partitions("g")) == {T0}  # another partition's marker
    store.end_transaction(1, offsets_partition, commit=True)
    assert store.offsets("g")[T0].offset == 3


def test_pending_offsets_are_removed_with_their_group_and_topic(harness):
    store, offsets_partition = harness.store, harness.controller.coordinators.offsets_partition("g")
    pending = {T0: OffsetAndMetadata(1), TopicPartition("u", 0): OffsetAndMetadata(2)}
    store.write_offsets("g", pending, lambda _error: None, (1, 0))
    assert [group.group_id for group in store.load(offsets_partition)] == ["g"]
    store.remove_topic("t")
    assert set(store.unstable_partitions("g")) == {TopicPartition("u", 0)}
    store.remove_group("g", lambda _error: None)
    assert not store.unstable_partitions("g")
    store.end_transaction(1, offsets_partition, commit=True)
    assert store.offsets("g") == {}


def test_unused_transactional_ids_are_removed_without_lookups():
    harness = Harness()
    for number in range(20_000):
        harness.timers.now += 60 * 60
        assert not harness.coordinator.init_producer_id(f"{NAME}{number}", 60.0).error
    assert len(harness.coordinator._store._transactions) <= MIN_EXPIRY_SCAN
    assert len(harness.coordinator.transactions) == 7 * 24
