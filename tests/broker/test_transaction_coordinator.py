"""The transaction coordinator without a network: states, fencing, time-outs, markers that wait for a leader."""

from __future__ import annotations

import random

import pytest

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.log_store import LogOffsetStore
from asyncgroup.broker.coordinator.requests import OffsetAndMetadata
from asyncgroup.broker.internal_topics import OFFSETS_PARTITIONS
from asyncgroup.broker.offsets_topic import OffsetsTopic
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator
from asyncgroup.broker.transactions.markers import MarkerWriter
from asyncgroup.broker.transactions.metadata import LAST_EPOCH, NO_PRODUCER, ProducerIdAndEpoch
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.broker.transactions.store import MIN_EXPIRY_SCAN
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from tests.broker.harness import FakeTimers
from tests.broker.transactional import transactional

NAME = "tx"
PLACE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


class Listener:
    """A node that hears of its partitions and tells the coordinator."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self.coordinator = coordinator

    def partition_changed(self, partition) -> None:
        self.coordinator.partition_changed(TopicPartition(partition.topic, partition.index))

    def coordinator_elected(self, _offsets_partition: int) -> None: ...

    def coordinator_resigned(self, _offsets_partition: int) -> None: ...


class Place:
    """One node, one topic of two partitions, one coordinator; time moves by hand."""

    def __init__(self) -> None:
        self.timers = FakeTimers()
        self.controller = Controller(
            (1, 2), random.Random(1), default_partitions=2, default_replication_factor=1
        )
        topic = OffsetsTopic(1, self.controller, self._note, self._clock)
        self.store = LogOffsetStore(
            topic, self.timers, self.controller.coordinators.offsets_partition, self._clock
        )
        self.appended: list[TopicPartition] = []
        markers = MarkerWriter(self.controller, self._offsets_ended, self._note, self._clock)
        self.coordinator = TransactionCoordinator(self.controller, self.timers, markers)
        self.listener = Listener(self.coordinator)
        self.controller.node_up(1, self.listener)
        for number in range(OFFSETS_PARTITIONS):
            self.store.load(number)
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

    def add(self, producer: ProducerIdAndEpoch, *places: TopicPartition) -> ErrorCode:
        return self.coordinator.add_partitions(NAME, producer, places or (PLACE,))

    def write(self, producer: ProducerIdAndEpoch, partition: int = 0) -> None:
        data = transactional(b"v", producer_id=producer.id, epoch=producer.epoch)
        self.log(partition).append(data, 0)


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_transaction_from_its_beginning_to_its_markers(place):
    producer = place.init()
    assert producer.epoch == 0
    assert place.state is TransactionState.EMPTY
    assert place.add(producer, PLACE, OTHER) is ErrorCode.NONE
    assert place.state is TransactionState.ONGOING
    place.write(producer)
    assert place.log().last_stable_offset == 0
    assert place.coordinator.end(NAME, producer, commit=True) == (ErrorCode.NONE, producer)
    assert place.state is TransactionState.COMPLETE_COMMIT
    assert place.appended == [PLACE, OTHER]
    assert (place.log().last_stable_offset, place.log(1).end_offset) == (2, 1)
    # the answer may have been lost: the request comes again
    assert place.coordinator.end(NAME, producer, commit=True) == (ErrorCode.NONE, producer)
    assert place.coordinator.end(NAME, producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert place.add(producer) is ErrorCode.NONE
    assert place.coordinator.end(NAME, producer, commit=False).error is ErrorCode.NONE
    assert place.state is TransactionState.COMPLETE_ABORT
    assert place.timers.keys == set()


def test_who_may_add_and_end(place):
    producer = place.init()
    stranger, zombie = ProducerIdAndEpoch(99, 0), ProducerIdAndEpoch(producer.id, producer.epoch + 1)
    for asked, error in (
        (stranger, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (zombie, ErrorCode.PRODUCER_FENCED),
    ):
        assert place.add(asked) is error
        assert place.coordinator.verify(NAME, asked, PLACE) is error
        assert place.coordinator.end(NAME, asked, commit=True).error is error
        assert place.coordinator.end_and_bump(NAME, asked, commit=True).error is error
    assert place.coordinator.add_partitions("?", producer, ()) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert place.coordinator.verify("?", producer, PLACE) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for end in (place.coordinator.end, place.coordinator.end_and_bump):
        assert end("?", producer, commit=True).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert place.coordinator.end(NAME, producer, commit=True).error is ErrorCode.INVALID_TXN_STATE
    assert place.coordinator.verify(NAME, producer, PLACE) is ErrorCode.TRANSACTION_ABORTABLE
    place.add(producer)
    assert place.coordinator.verify(NAME, producer, PLACE) is ErrorCode.NONE
    assert place.coordinator.verify(NAME, producer, OTHER) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("timeout", [0.0, -1.0, 900.1])
def test_impossible_timeouts(place, timeout):
    error, _ = place.coordinator.init_producer_id(NAME, timeout)
    assert error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not place.coordinator.transactions


def test_the_second_producer_of_a_name_fences_the_first(place):
    first = place.init()
    place.add(first)
    place.write(first)
    assert place.coordinator.init_producer_id(NAME, 60.0).error is ErrorCode.CONCURRENT_TRANSACTIONS
    # aborted in an epoch that nobody gets, so that the first can write nothing more
    assert place.state is TransactionState.COMPLETE_ABORT
    assert place.log().last_stable_offset == place.log().end_offset == 2
    assert not place.log().producers.is_open(*first)
    second = place.init()
    assert second == (first.id, first.epoch + 2)
    assert place.add(first) is ErrorCode.PRODUCER_FENCED
    assert place.coordinator.end(NAME, first, commit=True).error is ErrorCode.PRODUCER_FENCED
    assert place.add(second) is ErrorCode.NONE


def test_a_transaction_that_takes_too_long_is_aborted(place):
    producer = place.init(timeout=10.0)
    place.timers.advance(100.0)
    place.add(producer)
    place.write(producer)
    place.timers.advance(9.9)
    place.add(producer, OTHER)  # does not prolong it
    assert place.state is TransactionState.ONGOING
    place.timers.advance(0.1)
    assert place.state is TransactionState.COMPLETE_ABORT
    assert place.appended == [PLACE, OTHER]
    assert place.coordinator.end(NAME, producer, commit=True).error is ErrorCode.PRODUCER_FENCED
    ended = place.coordinator.end_and_bump(NAME, producer, commit=False)
    assert ended == (
        ErrorCode.NONE,
        ProducerIdAndEpoch(producer.id, producer.epoch + 1),
    )  # as if it had asked for it
    assert place.init(expected=producer) == ended.producer
    assert place.init().epoch == producer.epoch + 2


def test_a_producer_that_says_who_it_was(place):
    """KIP-360: it goes on in the next epoch, a repetition changes nothing, anyone older is fenced."""
    first = place.init()
    second = place.init(expected=first)
    assert second == (first.id, first.epoch + 1)
    assert place.init(expected=first) == second
    third = place.init(expected=second)
    assert third.epoch == second.epoch + 1
    for old in (first, ProducerIdAndEpoch(99, 0)):
        result = place.coordinator.init_producer_id(NAME, 60.0, old)
        assert result.error is ErrorCode.PRODUCER_FENCED
    # one that does not say so fences them all, the last included
    newest = place.init()
    assert place.coordinator.init_producer_id(NAME, 60.0, third).error is ErrorCode.PRODUCER_FENCED
    assert newest.epoch == third.epoch + 1


def test_a_producer_whose_epochs_are_used_up_gets_another_id(place):
    first = place.init()
    found = place.coordinator.transactions[NAME]
    found.producer = last = ProducerIdAndEpoch(first.id, LAST_EPOCH)
    second = place.init(expected=last)
    assert second.id != first.id
    assert second.epoch == 0
    # the answer was lost: it asks as who it was
    assert place.init(expected=last) == second


# -- KIP-890: the epoch goes up with every transaction ----------------------------------------------------------


def test_each_end_bumps_the_epoch(place):
    producer = place.init()
    place.add(producer)
    place.write(producer)
    end = place.coordinator.end_and_bump
    after = end(NAME, producer, commit=True)
    assert after == (ErrorCode.NONE, ProducerIdAndEpoch(producer.id, 1))
    assert end(NAME, producer, commit=True) == after  # repeated
    assert end(NAME, producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert place.add(producer) is ErrorCode.PRODUCER_FENCED
    assert not place.log().producers.is_open(*producer)
    place.write(after.producer)  # sequence numbers start anew
    assert place.add(after.producer) is ErrorCode.NONE
    assert end(NAME, after.producer, commit=False) == (ErrorCode.NONE, ProducerIdAndEpoch(producer.id, 2))


def test_an_abort_of_nothing_bumps_as_well_and_a_commit_of_nothing_is_refused(place):
    producer = place.init()
    assert place.coordinator.end_and_bump(NAME, producer, commit=True).error is ErrorCode.INVALID_TXN_STATE
    after = place.coordinator.end_and_bump(NAME, producer, commit=False)
    assert after == (ErrorCode.NONE, ProducerIdAndEpoch(producer.id, 1))
    assert place.appended == []
    assert place.state is TransactionState.COMPLETE_ABORT
    again = place.coordinator.end_and_bump(NAME, after.producer, commit=False)
    assert again.producer.epoch == 2
    assert place.coordinator.end_and_bump(NAME, producer, commit=False).error is ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_ends_in_another_id(place):
    place.init()
    found = place.coordinator.transactions[NAME]
    found.producer = last = ProducerIdAndEpoch(found.producer.id, LAST_EPOCH)
    place.add(last)
    place.write(last)
    after = place.coordinator.end_and_bump(NAME, last, commit=True)
    assert after.error is ErrorCode.NONE
    assert after.producer.id != last.id
    assert after.producer.epoch == 0
    assert place.coordinator.end_and_bump(NAME, last, commit=True) == after
    assert place.log().last_stable_offset == place.log().end_offset
    assert place.add(after.producer) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("add_partition", "knows", "prepared", "expected"),
    [
        (False, False, False, ErrorCode.INVALID_TXN_STATE),
        (False, True, False, ErrorCode.TRANSACTION_ABORTABLE),
        (True, True, False, ErrorCode.NONE),
        (False, True, True, ErrorCode.NOT_ENOUGH_REPLICAS),
        (True, True, True, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_a_write_that_was_not_announced(place, add_partition, knows, prepared, expected):
    producer = place.init()
    if prepared:
        place.add(producer, OTHER)
        place.controller.node_down(1)
        place.coordinator.end(NAME, producer, commit=True)
    said = place.coordinator.add_or_verify(
        NAME, producer, PLACE, add_partition=add_partition, supports_abortable_error=knows
    )
    assert said is expected
    fenced = ProducerIdAndEpoch(producer.id, producer.epoch + 1)
    said = place.coordinator.add_or_verify(
        NAME, fenced, PLACE, add_partition=add_partition, supports_abortable_error=knows
    )
    assert said is ErrorCode.INVALID_PRODUCER_EPOCH
    said = place.coordinator.add_or_verify(
        None, producer, PLACE, add_partition=add_partition, supports_abortable_error=knows
    )
    assert said is ErrorCode.INVALID_TXN_STATE


# -- markers that have to wait ----------------------------------------------------------------------------------


def test_a_marker_waits_for_a_leader(place):
    producer = place.init()
    place.add(producer, PLACE, OTHER)
    place.write(producer)
    place.controller.node_down(1)
    assert place.coordinator.end(NAME, producer, commit=True).error is ErrorCode.NONE
    assert place.state is TransactionState.PREPARE_COMMIT
    for error in (
        place.add(producer),
        place.coordinator.end(NAME, producer, commit=True).error,
        place.coordinator.init_producer_id(NAME, 60.0).error,
    ):
        assert error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert place.coordinator.end(NAME, producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    place.controller.node_up(1, place.listener)
    assert place.state is TransactionState.COMPLETE_COMMIT
    assert place.log().last_stable_offset == place.log().end_offset == 2


def test_a_deleted_topic_needs_no_marker(place):
    producer = place.init()
    place.add(producer, PLACE)
    place.controller.node_down(1)
    place.coordinator.end_and_bump(NAME, producer, commit=False)
    assert place.state is TransactionState.PREPARE_ABORT
    place.controller.node_up(2, place.listener)
    place.controller.delete_topic(place.topic)
    assert place.state is TransactionState.COMPLETE_ABORT
    after = place.init()
    place.add(after, PLACE)
    assert place.coordinator.end(NAME, after, commit=True).error is ErrorCode.NONE
    assert place.state is TransactionState.COMPLETE_COMMIT


def test_each_name_has_its_node(place):
    names = [f"tx-{number}" for number in range(20)]
    assert {place.coordinator.coordinator_of(name) for name in names} == {1}
    place.controller.node_up(2, place.listener)
    assert {place.coordinator.coordinator_of(name) for name in names} == {
        1
    }  # it stays where it is, as leaders do
    place.controller.coordinators.spread(place.controller.alive)
    assert {place.coordinator.coordinator_of(name) for name in names} == {1, 2}
    for name in names:
        node = place.coordinator.coordinator_of(name)
        assert place.coordinator.error_for(name, node) is ErrorCode.NONE
        assert place.coordinator.error_for(name, 3 - node) is ErrorCode.NOT_COORDINATOR
    assert place.coordinator.error_for("", 1) is ErrorCode.INVALID_REQUEST
    place.controller.node_down(1)
    place.controller.node_down(2)
    assert place.coordinator.coordinator_of(names[0]) == -1


def test_an_id_that_nobody_uses_is_forgotten(place):
    day = 86_400
    producer = place.init()
    place.timers.advance(6 * day)
    place.add(producer, PLACE)
    assert place.coordinator.end(NAME, producer, commit=True).error is ErrorCode.NONE
    place.timers.advance(6 * day)
    assert place.init() == producer.bumped
    assert list(place.coordinator.transactions) == [NAME]
    place.timers.advance(7 * day)
    assert place.coordinator.add_partitions(NAME, producer.bumped, [PLACE]) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    assert list(place.coordinator.transactions) == []
    again = place.init()
    assert (again.id != producer.id, again.epoch) == (True, 0)


# -- offsets of a group -----------------------------------------------------------------------------------------


def test_offsets_count_when_the_transaction_is_committed(place):
    producer = place.init()

    def commit(offset: int, commit: bool) -> None:
        place.add(producer, place.coordinator.offsets_topic_partition("g"))
        pending = {PLACE: OffsetAndMetadata(offset)}
        place.store.write_pending_offsets("g", producer, pending, lambda _error: None)
        assert set(place.store.unstable_partitions("g")) == {PLACE}
        assert not place.store.unstable_partitions("other")
        place.coordinator.end(NAME, producer, commit=commit)
        assert not place.store.unstable_partitions("g")

    commit(5, True)
    assert place.store.offsets("g")[PLACE].offset == 5
    commit(9, False)
    assert place.store.offsets("g")[PLACE].offset == 5


def test_a_later_commit_wins_over_a_pending_one(place):
    store = place.store
    number = place.controller.coordinators.offsets_partition("g")
    for producer_id, offset in ((1, 5), (2, 6)):
        pending = {PLACE: OffsetAndMetadata(offset)}
        store.write_pending_offsets("g", (producer_id, 0), pending, lambda _error: None)
    store.end_transaction(2, number, commit=True)
    store.end_transaction(1, number, commit=True)  # written before the other's
    assert store.offsets("g")[PLACE].offset == 6
    store.write_pending_offsets("g", (1, 0), {PLACE: OffsetAndMetadata(7)}, lambda _error: None)
    store.write_offsets("g", {PLACE: OffsetAndMetadata(3)}, lambda _error: None)
    store.end_transaction(1, (number + 1) % 50, commit=True)
    assert set(store.unstable_partitions("g")) == {PLACE}  # another partition's marker
    store.end_transaction(1, number, commit=True)
    assert store.offsets("g")[PLACE].offset == 3


def test_pending_offsets_go_with_their_group_and_topic(place):
    store, number = place.store, place.controller.coordinators.offsets_partition("g")
    pending = {PLACE: OffsetAndMetadata(1), TopicPartition("u", 0): OffsetAndMetadata(2)}
    store.write_pending_offsets("g", (1, 0), pending, lambda _error: None)
    assert [group.group_id for group in store.load(number)] == ["g"]
    store.remove_topic("t")
    assert set(store.unstable_partitions("g")) == {TopicPartition("u", 0)}
    store.remove_group("g", lambda _error: None)
    assert not store.unstable_partitions("g")
    store.end_transaction(1, number, commit=True)
    assert store.offsets("g") == {}


def test_ids_that_nobody_asks_for_any_more_do_not_stay():
    place = Place()
    for number in range(20_000):
        place.timers.now += 60 * 60
        assert not place.coordinator.init_producer_id(f"{NAME}{number}", 60.0).error
    assert len(place.coordinator._store._transactions) <= MIN_EXPIRY_SCAN
    assert len(place.coordinator.transactions) == 7 * 24
