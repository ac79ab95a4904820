"""The sequence numbers that a partition expects from producers before their transaction begins there (KIP-890)."""

from __future__ import annotations

import pytest

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.log.producer_state import ProducerStateManager
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.batch_view import BatchView
from tests.broker.batches import sequenced
from tests.broker.transactional import transactional

GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def inside(sequence: int, epoch: int = 0) -> BatchView:
    """A batch of one record in a transaction of producer 7."""
    return BatchView(transactional(b"v", producer_id=7, epoch=epoch, sequence=sequence))


class States:
    """Producer states with a log end offset."""

    def __init__(self) -> None:
        self.producers = ProducerStateManager()
        self.offset = 0

    def append(self, batch: BatchView) -> ErrorCode:
        """Append a batch if it is valid; return the error code."""
        try:
            self.producers.check_append(batch)
        except AppendError as error:
            return error.code
        self.producers.update(batch, self.offset)
        self.offset += batch.record_count
        return ErrorCode.NONE

    def mark(self, epoch: int) -> None:
        self.producers.check_marker(7, epoch)
        self.producers.end_transaction(7, epoch, self.offset, committed=True)
        self.offset += 1


@pytest.fixture
def states() -> States:
    """The states of no producers yet."""
    return States()


def test_the_lowest_rejected_sequence_number_must_come_first(states: States) -> None:
    for sequence in (5, 3, 4):
        states.producers.record_verification(inside(sequence), adds_partitions=False)
    assert [states.append(inside(sequence)) for sequence in (5, 4, 3, 4)] == [GAP, GAP, 0, 0]


def test_a_new_epoch_resets_the_rejected_sequence_numbers(states: States) -> None:
    states.producers.record_verification(inside(0, epoch=1), adds_partitions=False)
    states.producers.record_verification(inside(4, epoch=2), adds_partitions=False)
    states.producers.record_verification(inside(2, epoch=1), adds_partitions=False)
    assert states.append(inside(4, epoch=2)) == 0


@pytest.mark.parametrize(
    ("adds", "marked", "expected"),
    [(False, 0, ErrorCode.NONE), (True, 0, GAP), (True, 1, ErrorCode.NONE)],
    ids=["of an old producer", "of this epoch", "of the next epoch"],
)
def test_a_marker_resets_the_expected_sequence_number(adds: bool, marked: int, expected: ErrorCode) -> None:
    """Except a marker of the same epoch if each transaction bumps the epoch: it belongs to the previous transaction."""
    states = States()
    states.append(inside(0))
    states.mark(0)
    states.producers.record_verification(inside(1), adds_partitions=adds)
    states.mark(marked)
    following = inside(2) if not marked else inside(0, epoch=1)
    if not adds:
        states.append(inside(1))
    assert states.append(following) == expected


@pytest.mark.parametrize("known", [False, True])
def test_a_producer_that_adds_partitions_by_writing_starts_with_0(states: States, known: bool) -> None:
    if known:  # from a marker only
        states.mark(0)
    states.producers.record_verification(inside(3), adds_partitions=True)
    assert states.append(inside(3)) == GAP
    states.producers.record_verification(inside(0), adds_partitions=True)
    assert [states.append(inside(sequence)) for sequence in (0, 1)] == [0, 0]


def test_old_epochs_are_rejected_without_verification(states: States) -> None:
    states.mark(4)
    with pytest.raises(AppendError) as caught:
        states.producers.record_verification(inside(0, epoch=3), adds_partitions=False)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("marked_before", [False, True])
def test_after_a_reload_any_first_sequence_number_is_accepted(states: States, marked_before: bool) -> None:
    """The producer's batches may have been deleted, so that only its marker is left: it goes on with its number."""
    if marked_before:
        states.mark(0)
    states.producers.accept_any_sequence()
    states.mark(0)
    assert [states.append(inside(sequence)) for sequence in (5, 7, 6)] == [0, GAP, 0]
    states.mark(1)
    assert [states.append(inside(sequence, epoch=1)) for sequence in (3, 0)] == [GAP, 0]


def test_non_transactional_batches_are_checked_too(states: States) -> None:
    states.producers.record_verification(inside(1), adds_partitions=False)
    assert states.append(BatchView(sequenced(2))) == GAP
    assert states.append(BatchView(sequenced(1))) == 0


def test_the_coordinator_epoch_of_the_last_marker_is_kept_over_epochs(states: States) -> None:
    states.mark(0)
    states.append(BatchView(sequenced(0, epoch=1)))
    (active,) = states.producers.active_producers()
    assert (active.epoch, active.last_sequence, active.coordinator_epoch) == (1, 0, 0)


@pytest.mark.parametrize(("epoch", "refused"), [(0, True), (1, False), (2**15 - 1, False)])
def test_markers_of_producers_with_epoch_bumps(states: States, epoch: int, refused: bool) -> None:
    """A marker with the epoch of the open transaction is a late one (`checkProducerEpoch`).

    Except with the last epoch, which cannot be bumped.
    """
    states.append(inside(0, epoch=epoch if epoch != 1 else 0))
    states.producers.check_marker(7, epoch)
    if refused:
        with pytest.raises(AppendError) as caught:
            states.producers.check_marker(7, epoch, bumps_epoch=True)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        states.producers.check_marker(7, epoch, bumps_epoch=True)
    states.mark(epoch)
    states.producers.check_marker(7, epoch, bumps_epoch=True)  # no transaction is open: a duplicate marker
