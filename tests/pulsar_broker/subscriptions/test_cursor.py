"""Cursor beside a model that keeps the acknowledged messages of each entry."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.pulsar.wire.ack_set import full_set
from asyncgroup.pulsar_broker.log.topic_log import TopicLog
from asyncgroup.pulsar_broker.subscriptions.cursor import Cursor
from tests.pulsar_broker.support import metadata

SIZES = [1, 3, 1, 70, 2, 1, 4, 1]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "part", "before"]),
        st.integers(0, len(SIZES) - 1),
        st.integers(0, (1 << 70) - 1),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_cursor_and_its_model(steps: list[tuple[str, int, int]]) -> None:
    log = TopicLog()
    for size in SIZES:
        log.append(metadata(num_messages_in_batch=size), b"")
    cursor = Cursor(0)
    model = [full_set(size) for size in SIZES]
    for kind, index, bits in steps:
        if kind == "before":
            cursor.ack_before(index)
            model[:index] = [0] * index
        else:
            model[index] &= bits if kind == "part" else 0
            whole = cursor.ack(log[index], bits if kind == "part" else 0)
            assert whole == (model[index] == 0)
        for entry in log:
            assert cursor.unacked(entry) == model[entry.index]
            assert cursor.is_acked(entry.index) == (model[entry.index] == 0)
            partly = cursor.partly_acked(entry)
            assert partly is None or 0 < partly == model[entry.index] < full_set(entry.count)
        left = [number for number, unacked in enumerate(model) if unacked]
        assert cursor.mark_delete == (left[0] if left else len(SIZES)) - 1
        for number in range(len(SIZES)):
            assert cursor.next_unacked(number) == next((each for each in left if each >= number), len(SIZES))


def test_a_seek_keeps_the_acknowledged_messages_of_batches() -> None:
    log = TopicLog()
    entry = log.append(metadata(num_messages_in_batch=4), b"")
    cursor = Cursor(0)
    assert not cursor.ack(entry, 0b1010)
    cursor.reset(0, is_shared=True)
    assert cursor.unacked(entry) == 0b1010
    cursor.reset(0, is_shared=False)
    assert cursor.unacked(entry) == 0b1111
