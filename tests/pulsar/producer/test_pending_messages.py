"""Pending sends: receipts that match, come late or are ahead, duplicates, timeouts, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.pulsar.producer.pending_messages import PendingMessages, PendingSend, ReceiptMatch

LATE, AHEAD = ReceiptMatch.LATE, ReceiptMatch.AHEAD


def pushed(*sends: PendingSend) -> PendingMessages:
    pending = PendingMessages()
    for send in sends:
        pending.push(send)
    return pending


def one(number: int, created_at: float = 0.0, **options: Any) -> PendingSend:
    return PendingSend((b"", b""), 10, number, number, [None], 20, created_at, **options)


def batch(first: int, last: int) -> PendingSend:
    return PendingSend((b"", b""), 10, first, last, [None] * (last - first + 1), 20, 0.0, is_batch=True)


def chunks(number: int, count: int, created_at: float = 0.0) -> list[PendingSend]:
    return [one(number, created_at, chunk=each, chunks=count) for each in range(count)]


@pytest.mark.parametrize(
    ("send", "receipt"),
    [
        (one(5), (5, 0)),
        (one(5), (5, 5)),
        (one(5), (5, 2**64 - 1)),
        (batch(5, 9), (5, 9)),
        (batch(5, 9), (5, 0)),  # a broker without the highest number
        (batch(5, 9), (9, 0)),  # a broker that answers by the last number
        (batch(5, 9), (9, 9)),
    ],
)
def test_the_receipt_of_the_oldest_send(send: PendingSend, receipt: tuple[int, int]) -> None:
    pending = pushed(send, one(10))
    assert pending.receive(*receipt) is send
    assert len(pending) == 1


@pytest.mark.parametrize(
    ("receipt", "match"),
    [((4, 0), LATE), ((4, 4), LATE), ((7, 0), AHEAD), ((10, 0), AHEAD), ((5, 8), AHEAD)],
)
def test_other_receipts_leave_the_oldest_send(receipt: tuple[int, int], match: ReceiptMatch) -> None:
    pending = pushed(batch(5, 9), one(10))
    assert pending.receive(*receipt) is match
    assert len(pending) == 2


def test_a_receipt_without_pending_sends_is_late() -> None:
    assert PendingMessages().receive(3, 0) is LATE


def test_the_receipt_of_a_send_that_timed_out_does_not_meet_the_next_one() -> None:
    pending = pushed(one(1, 0.0), one(2, 5.0))
    assert [send.sequence_id for send in pending.expire(1.0)] == [1]
    assert pending.receive(1, 0) is LATE
    found = pending.receive(2, 0)
    assert isinstance(found, PendingSend)


def test_a_duplicate_is_answered_before_what_the_broker_still_writes() -> None:
    duplicate = one(3, maybe_duplicate=True)
    pending = pushed(one(7), duplicate, one(8))
    assert pending.receive(3, 0) is duplicate
    assert pending.receive(3, 0) is LATE
    assert [send.sequence_id for send in pending] == [7, 8]
    assert pending.first_number == 0


def test_only_the_oldest_sends_expire() -> None:
    pending = pushed(one(1, 1.0), *chunks(2, 3, 2.0), one(3, 3.0))
    assert [send.sequence_id for send in pending.expire(2.0)] == [1, 2, 2, 2]
    assert pending.oldest == 3.0
    assert pending.expire(2.9) == []


def test_a_refused_chunk_takes_the_others_of_its_value() -> None:
    pending = pushed(one(1), *chunks(2, 3), one(3))
    assert pending.receive(1, 0)
    assert pending.receive(2, 0)  # the first chunk
    assert [send.chunk for send in pending.refuse(2)] == [1, 2]
    assert [send.sequence_id for send in pending] == [3]
    assert pending.refuse(2) == []


def test_a_batch_is_refused_by_its_first_or_last_number() -> None:
    for number in (5, 9):
        pending = pushed(batch(5, 9))
        assert len(pending.refuse(number)) == 1


def test_sends_that_are_taken_take_their_values() -> None:
    pending = pushed(one(1), *chunks(2, 3), one(3))
    assert [send.number for send in pending.take(lambda send: send.chunk == 1)] == [1, 2, 3]
    assert [send.number for send in pending] == [0, 4]


def test_numbers_say_what_is_done() -> None:
    pending = pushed(one(1), one(2))
    assert (pending.first_number, pending.next_number) == (0, 2)
    pending.receive(1, 0)
    assert (pending.first_number, pending.next_number) == (1, 2)
    pending.receive(2, 0)
    assert (pending.first_number, pending.next_number) == (2, 2)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_every_send_is_done_exactly_once(sizes: list[int], data: st.DataObject) -> None:
    """A broker answers in order; some sends time out before, and their receipts come late."""
    pending = PendingMessages()
    number, receipts, sends = 0, [], []
    for position, size in enumerate(sizes):
        send = batch(number, number + size - 1) if size > 1 else one(number)
        send.created_at = float(position)
        pending.push(send)
        sends.append(send)
        receipts.append((number, number + size - 1))
        number += size
    done: list[PendingSend] = []
    for receipt in receipts:
        if data.draw(st.booleans()) and pending.oldest is not None:
            done += pending.expire(pending.oldest)
        found = pending.receive(*receipt)
        if isinstance(found, PendingSend):
            assert (found.sequence_id, found.highest_sequence_id) == receipt
            done.append(found)
        else:
            assert found is LATE
    assert done + list(pending) == sends
    assert not pending
