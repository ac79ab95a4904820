"""Which sequence numbers a partition expects of producers whose transactions have yet to begin there (KIP-890)."""

from __future__ import annotations

import pytest

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.producer_state import ProducerStates
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.records import BatchHeader, read_batch_header
from tests.broker.batches import sequenced
from tests.broker.transactional import transactional

GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def header(data: bytes) -> BatchHeader:
    found = read_batch_header(data)
    assert found is not None
    return found


def inside(sequence: int, epoch: int = 0) -> BatchHeader:
    """A batch of one record in a transaction of producer 7."""
    return header(transactional(b"v", producer_id=7, epoch=epoch, sequence=sequence))


class States:
    """Producer states that count what they take."""

    def __init__(self) -> None:
        self.producers, self.offset = ProducerStates(), 0

    def take(self, batch: BatchHeader) -> ErrorCode:
        """Append a batch if it fits; what was said."""
        try:
            self.producers.check(batch)
        except AppendError as error:
            return error.code
        self.producers.appended(batch, self.offset)
        self.offset += batch.record_count
        return ErrorCode.NONE

    def mark(self, epoch: int) -> None:
        self.producers.check_marker(7, epoch)
        self.producers.ended(7, epoch, self.offset, committed=True)
        self.offset += 1


def test_the_lowest_number_that_was_refused_comes_first() -> None:
    states = States()
    for sequence in (5, 3, 4):
        states.producers.verify(inside(sequence), adds=False)
    assert [states.take(inside(sequence)) for sequence in (5, 4, 3, 4)] == [GAP, GAP, 0, 0]


def test_a_new_epoch_forgets_what_was_refused_before() -> None:
    states = States()
    states.producers.verify(inside(0, epoch=1), adds=False)
    states.producers.verify(inside(4, epoch=2), adds=False)
    states.producers.verify(inside(2, epoch=1), adds=False)
    assert states.take(inside(4, epoch=2)) == 0


@pytest.mark.parametrize(
    ("adds", "marked", "expected"),
    [(False, 0, ErrorCode.NONE), (True, 0, GAP), (True, 1, ErrorCode.NONE)],
    ids=["of an old producer", "of this epoch", "of the next epoch"],
)
def test_a_marker_ends_the_doubt(adds: bool, marked: int, expected: ErrorCode) -> None:
    """But not of the same epoch if the epoch goes up with each transaction: it belongs to the one before."""
    states = States()
    states.take(inside(0))
    states.mark(0)
    states.producers.verify(inside(1), adds=adds)
    states.mark(marked)
    following = inside(2) if not marked else inside(0, epoch=1)
    if not adds:
        states.take(inside(1))
    assert states.take(following) == expected


@pytest.mark.parametrize("known", [False, True])
def test_who_adds_by_writing_begins_with_0(known: bool) -> None:
    states = States()
    if known:  # by a marker only
        states.mark(0)
    states.producers.verify(inside(3), adds=True)
    assert states.take(inside(3)) == GAP
    states.producers.verify(inside(0), adds=True)
    assert [states.take(inside(sequence)) for sequence in (0, 1)] == [0, 0]


def test_old_epochs_are_not_asked_about() -> None:
    states = States()
    states.mark(4)
    with pytest.raises(AppendError) as caught:
        states.producers.verify(inside(0, epoch=3), adds=False)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("marked_before", [False, True])
def test_a_log_read_anew_may_lack_what_a_producer_wrote(marked_before: bool) -> None:
    """Only a marker came since, and its batches were deleted: it goes on with the number that it has come to."""
    states = States()
    if marked_before:
        states.mark(0)
    states.producers.doubt_sequences()
    states.mark(0)
    assert [states.take(inside(sequence)) for sequence in (5, 7, 6)] == [0, GAP, 0]
    states.mark(1)
    assert [states.take(inside(sequence, epoch=1)) for sequence in (3, 0)] == [GAP, 0]


def test_plain_batches_obey_as_well() -> None:
    states = States()
    states.producers.verify(inside(1), adds=False)
    assert states.take(header(sequenced(2))) == GAP
    assert states.take(header(sequenced(1))) == 0


def test_who_wrote_the_last_marker_is_known_over_epochs() -> None:
    states = States()
    states.mark(0)
    states.take(header(sequenced(0, epoch=1)))
    (active,) = states.producers.active()
    assert (active.epoch, active.last_sequence, active.coordinator_epoch) == (1, 0, 0)


@pytest.mark.parametrize(("epoch", "refused"), [(0, True), (1, False), (2**15 - 1, False)])
def test_markers_of_producers_whose_epochs_go_up(epoch: int, refused: bool) -> None:
    """A marker of the very epoch in which a transaction is open came late (`checkProducerEpoch`); the last epoch has
    no higher one.
    """
    states = States()
    states.take(inside(0, epoch=epoch if epoch != 1 else 0))
    states.producers.check_marker(7, epoch)
    if refused:
        with pytest.raises(AppendError) as caught:
            states.producers.check_marker(7, epoch, bumps=True)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        states.producers.check_marker(7, epoch, bumps=True)
    states.mark(epoch)
    states.producers.check_marker(7, epoch, bumps=True)  # nothing is open any more: a repetition
