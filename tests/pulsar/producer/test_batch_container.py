"""The open batch: its limits, and one batch for each key."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.pulsar.producer.batch_container import KeyBasedContainer, OneBatchContainer
from asyncgroup.pulsar.producer.outgoing import MESSAGE_OVERHEAD, OutgoingMessage
from tests.pulsar.producer.messages import message


def numbered(number: int, **options: object) -> OutgoingMessage:
    return message(b"1234", sequence_id=number, **options)


SIZE = MESSAGE_OVERHEAD + 4


def numbers(batches: list[list[OutgoingMessage]]) -> list[list[int | None]]:
    return [[each.sequence_id for each in batch] for batch in batches]


def test_a_batch_is_full_by_count() -> None:
    container = OneBatchContainer(3, 10_000)
    assert [container.add(numbered(each)) for each in range(3)] == [False, False, True]
    assert not container.fits(SIZE)
    assert numbers(container.take()) == [[0, 1, 2]]
    assert container.take() == []
    assert container.fits(SIZE)


def test_a_batch_is_full_by_bytes() -> None:
    container = OneBatchContainer(100, 2 * SIZE)
    assert not container.add(numbered(0))
    assert container.fits(SIZE)
    assert not container.fits(SIZE + 1)
    assert container.add(numbered(1))


def test_an_empty_batch_takes_a_message_of_any_size() -> None:
    container = OneBatchContainer(100, 1)
    assert container.fits(SIZE)
    assert container.add(numbered(0))


def test_one_batch_for_each_key_in_the_order_of_their_last_messages() -> None:
    container = KeyBasedContainer(100, 10_000)
    for number, key in enumerate(["a", "b", "b", "a", None, "a"]):
        container.add(numbered(number, key=key))
    assert container.count == 6
    assert numbers(container.take()) == [[1, 2], [4], [0, 3, 5]]
    assert (container.count, container.size) == (0, 0)


def test_the_ordering_key_decides_before_the_key() -> None:
    container = KeyBasedContainer(100, 10_000)
    container.add(numbered(0, key="a", ordering_key=b"x"))
    container.add(numbered(1, key="b", ordering_key=b"x"))
    container.add(numbered(2, key="x"))
    assert numbers(container.take()) == [[0, 1], [2]]


@given(st.lists(st.sampled_from([None, "a", "b", "c"])), st.integers(1, 5), st.integers(1, 200))
def test_no_message_is_lost_and_keys_keep_their_order(
    keys: list[str | None], max_count: int, max_size: int
) -> None:
    container = KeyBasedContainer(max_count, max_size)
    found: list[OutgoingMessage] = []
    for number, key in enumerate(keys):
        each = numbered(number, key=key)
        if not container.fits(each.size):
            found += [one for batch in container.take() for one in batch]
        if container.add(each):
            assert container.count <= max_count
            found += [one for batch in container.take() for one in batch]
    found += [one for batch in container.take() for one in batch]
    assert sorted(each.sequence_id or 0 for each in found) == list(range(len(keys)))
    for key in set(keys):
        own = [each.sequence_id or 0 for each in found if each.key == key]
        assert own == sorted(own)
