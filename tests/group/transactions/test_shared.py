"""Which batches belong to a transaction, when it can be committed, and what an abort takes back."""

from __future__ import annotations

from asyncgroup.errors import Rebalanced
from asyncgroup.group.transactions.shared import ClaimProgress, Phase, SharedTransactions, Ticket
from asyncgroup.model import Batch, CommittedOffset, Record, TopicPartition
from tests.group.parts import end_claim, make_session

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
REASON = RuntimeError("reason")


def batch(first: int, last: int, partition: int = 0) -> Batch:
    return Batch("orders", partition, [Record("orders", partition, n) for n in range(first, last + 1)])


async def made() -> tuple[SharedTransactions, ClaimProgress, ClaimProgress]:
    """Return the state with two claims."""
    session, _ = make_session()
    state = SharedTransactions()
    zero, one = (state.add(claim) for claim in session.claims)
    return state, zero, one


def ticket_of(progress: ClaimProgress) -> Ticket:
    assert progress.waiter is not None
    ticket = progress.waiter.result()
    assert ticket is not None
    return ticket


async def test_a_transaction_begins_with_the_batches_that_wait() -> None:
    state, zero, one = await made()
    assert state.enter(zero, batch(0, 4)) is None
    waiting = state.wait_in_line(zero, batch(0, 4))
    assert state.is_wanted
    assert not waiting.done()
    transaction = state.begin()
    assert not state.is_wanted
    first = ticket_of(zero)
    second = state.enter(one, batch(0, 2, 1))
    assert second is not None
    assert transaction.running == 2
    state.request_end(transaction)
    assert state.enter(one, batch(3, 4, 1)) is None, "it waits for the next one"
    state.end_batch(first)
    assert not transaction.is_whole
    state.end_batch(second)
    assert transaction.is_whole
    offsets = state.begin_commit(transaction)
    assert offsets == {ZERO: CommittedOffset(5), ONE: CommittedOffset(3)}
    state.committed(offsets)
    assert (state.current, transaction.phase, transaction.over.is_set()) == (None, Phase.OVER, True)
    assert [p.first_offset for p in (zero, one)] == [None, None]
    assert [p.claim.next_mark for p in (zero, one)] == [5, 3]
    assert not zero.marks.dirty


async def test_a_commit_waits_for_calls_of_the_producer() -> None:
    """Such as those of tasks that the function has started; else they could write in the next transaction."""
    state, zero, _ = await made()
    transaction = state.begin()
    ticket = state.enter(zero, batch(0, 4))
    assert ticket is not None
    transaction.calls += 1
    state.end_batch(ticket)
    state.request_end(transaction)
    assert not transaction.is_whole
    state.end_call(transaction)
    assert transaction.is_whole
    assert state.changed.is_set()


async def test_an_abort_returns_to_the_first_batch_of_each_claim() -> None:
    state, zero, one = await made()
    transaction = state.begin()
    for first in (10, 15):  # the records before 10 were compacted
        ticket = state.enter(zero, batch(first, first + 4))
        assert ticket is not None
        state.end_batch(ticket)
    assert zero.claim.next_mark == 20
    state.fail(transaction, REASON)
    assert transaction.is_whole
    held = state.wait_in_line(zero, batch(20, 24))
    state.aborted()
    assert held.result() is None, "the batch that is held is read again"
    assert (zero.claim.position, zero.claim.next_mark, zero.marks.dirty) == (10, 0, False)
    assert one.claim.position == 0, "it has nothing in the transaction"


async def test_a_batch_in_hand_is_kept_by_an_abort_of_other_claims() -> None:
    state, zero, one = await made()
    transaction = state.begin()
    ticket = state.enter(zero, batch(0, 4))
    assert ticket is not None
    state.request_end(transaction)
    held = state.wait_in_line(one, batch(0, 2, 1))
    state.fail_batch(ticket, REASON)
    state.aborted()
    assert not held.done()
    state.begin()
    assert ticket_of(one).batch.last_offset == 2


async def test_a_late_batch_of_an_aborted_transaction_marks_nothing() -> None:
    state, zero, _ = await made()
    first = state.begin()
    late = state.enter(zero, batch(0, 4))
    assert late is not None
    state.fail(first, REASON)
    state.aborted()
    state.begin()
    state.end_batch(late)
    assert zero.claim.next_mark == 0
    assert zero.first_offset is None
    assert state.current is not None
    assert (state.current.running, first.running) == (0, 0)


async def test_a_failure_during_the_commit_is_ignored() -> None:
    state, zero, _ = await made()
    transaction = state.begin()
    ticket = state.enter(zero, batch(0, 4))
    assert ticket is not None
    state.end_batch(ticket)
    state.request_end(transaction)
    state.begin_commit(transaction)
    state.give_up(zero, REASON)
    assert transaction.failure is None, "the outcome is that of the producer"


async def test_the_end_of_a_claim() -> None:
    """Its waiting batch is dropped; a transaction with batches of it ends soon."""
    state, zero, one = await made()
    held = state.wait_in_line(one, batch(0, 2, 1))
    end_claim(one.claim, Rebalanced("test"))
    state.on_claim_ended(one)
    assert held.result() is None
    assert not state.is_wanted
    transaction = state.begin()
    ticket = state.enter(zero, batch(0, 4))
    assert ticket is not None
    state.on_claim_ended(one)
    assert transaction.is_open, "it has nothing in the transaction"
    end_claim(zero.claim, Rebalanced("test"))
    state.on_claim_ended(zero)
    assert transaction.phase is Phase.ENDING
    state.end_batch(ticket)
    assert transaction.is_whole


async def test_a_claim_that_goes_with_batches_in_the_transaction() -> None:
    state, zero, _ = await made()
    transaction = state.begin()
    state.enter(zero, batch(0, 4))
    state.remove(zero)
    assert transaction.failure is not None


async def test_a_claim_that_was_assigned_again_while_its_handler_still_runs() -> None:
    state, zero, _ = await made()
    transaction = state.begin()
    late = state.enter(zero, batch(0, 4))
    assert late is not None
    again = state.add(zero.claim)
    assert transaction.failure is not None
    state.aborted()
    state.begin()
    state.end_batch(late)
    state.remove(zero)
    assert state.enter(again, batch(0, 4)) is not None


async def test_a_reader_that_is_cancelled_with_a_ticket_in_hand() -> None:
    state, zero, one = await made()
    state.wait_in_line(zero, batch(0, 4))
    state.withdraw(zero)
    assert not state.is_wanted
    state.wait_in_line(one, batch(0, 4, 1))
    transaction = state.begin()
    state.withdraw(one)
    assert (transaction.running, transaction.failure is not None) == (0, True)
    state.aborted()
    assert one.first_offset is None


async def test_marks_return_to_a_truncated_log() -> None:
    """The log was truncated below the mark with which the transaction began."""
    state, zero, _ = await made()
    zero.marks.advance(8, "", -1)
    transaction = state.begin()
    ticket = state.enter(zero, batch(8, 9))
    assert ticket is not None
    state.end_batch(ticket)
    zero.claim._inner.consumer._inner.restart(5)
    state.fail(transaction, REASON)
    state.aborted()
    assert (zero.claim.next_mark, zero.claim.position) == (5, 5)


async def test_an_abort_returns_to_records_that_replaced_truncated_ones() -> None:
    """The records were transformed in the same transaction, so their output is also aborted."""
    state, zero, _ = await made()
    zero.marks.advance(8, "", -1)
    transaction = state.begin()
    partition = zero.claim._inner.consumer._inner
    for first, last in ((8, 9), (5, 10)):
        if first == 5:
            partition.restart(5)
        ticket = state.enter(zero, batch(first, last))
        assert ticket is not None
        partition.seek_to(last + 1)  # it was read
        state.end_batch(ticket)
    state.fail(transaction, REASON)
    state.aborted()
    assert (zero.claim.next_mark, zero.claim.position) == (5, 5)


async def test_an_abort_returns_to_the_target_of_a_seek_and_takes_back_all_marks() -> None:
    state, zero, _ = await made()
    zero.marks.advance(8, "", -1)
    transaction = state.begin()
    for first, last in ((8, 9), (3, 4)):
        ticket = state.enter(zero, batch(first, last))
        assert ticket is not None
        state.end_batch(ticket)
    state.fail(transaction, REASON)
    state.aborted()
    assert (zero.claim.next_mark, zero.claim.position) == (8, 3)


async def test_a_batch_of_truncated_records_is_not_committed() -> None:
    """Its mark is ignored, so its output would be committed without an offset."""
    state, zero, _ = await made()
    transaction = state.begin()
    ticket = state.enter(zero, batch(0, 9))
    assert ticket is not None
    zero.claim._inner.consumer._inner.restart(5)
    state.end_batch(ticket)
    assert transaction.failure is not None
    state.aborted()
    assert (zero.claim.next_mark, zero.claim.position) == (0, 0)
