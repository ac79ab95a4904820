"""Sequence ids: who counts, and what may be a duplicate."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.pulsar.producer.sequence_ids import SequenceIds


def assigned(ids: SequenceIds, *given_ids: int | None) -> list[tuple[int, bool]]:
    return [ids.assign(each) for each in given_ids]


def test_a_new_producer_begins_with_0() -> None:
    ids = SequenceIds()
    ids.register(-1)
    assert assigned(ids, None, None) == [(0, False), (1, False)]


def test_it_continues_after_the_brokers_last_number() -> None:
    ids = SequenceIds()
    ids.register(41)
    assert ids.last_stored == 41
    assert assigned(ids, None) == [(42, False)]


def test_the_brokers_number_is_ignored_after_the_first_message() -> None:
    ids = SequenceIds()
    ids.register(-1)
    assert assigned(ids, None, None) == [(0, False), (1, False)]
    ids.register(0)  # a reconnect: 1 is still pending
    assert assigned(ids, None) == [(2, False)]


def test_a_reconnect_before_the_first_message_changes_nothing() -> None:
    ids = SequenceIds()
    ids.register(5)
    ids.register(3)
    assert assigned(ids, None) == [(6, False)]


def test_an_initial_number_decides_against_the_brokers() -> None:
    ids = SequenceIds(9)
    ids.register(11)
    assert assigned(ids, None, None, None) == [(10, True), (11, True), (12, False)]


def test_numbers_of_the_caller() -> None:
    ids = SequenceIds()
    ids.register(-1)
    assert assigned(ids, 7, 3, 7, None, 8, None) == [
        (7, False),
        (3, True),
        (7, True),
        (8, False),
        (8, True),
        (9, False),
    ]


def test_a_number_that_the_broker_has_may_be_a_duplicate_from_the_beginning() -> None:
    ids = SequenceIds()
    ids.register(5)
    assert assigned(ids, 3, 9) == [(3, True), (9, False)]


def test_receipts_out_of_order_keep_the_largest_number() -> None:
    ids = SequenceIds()
    assert ids.last_stored == -1
    ids.store(4)
    ids.store(2)
    assert ids.last_stored == 4


@given(st.integers(-1, 5), st.lists(st.none() | st.integers(0, 12)))
def test_a_number_is_a_duplicate_exactly_if_it_is_not_larger_than_all_before(
    last: int, given_ids: list[int | None]
) -> None:
    ids = SequenceIds()
    ids.register(last)
    largest = last
    for each in given_ids:
        number, maybe_duplicate = ids.assign(each)
        assert maybe_duplicate == (number <= largest)
        assert each is not None or not maybe_duplicate
        largest = max(largest, number)
