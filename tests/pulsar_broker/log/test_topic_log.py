"""TopicLog: indexes and positions of entries over several ledgers."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, strategies as st

from asyncgroup.pulsar_broker.log.topic_log import TopicLog
from tests.pulsar_broker.support import metadata

STEPS = st.lists(st.sampled_from(["append", "append", "append", "roll", "trim"]), max_size=40)


def log_of(steps: list[str]) -> TopicLog:
    ledgers = count(10, 3)  # other topics have those between
    log = TopicLog(ledgers)
    for step in steps:
        if step == "append":
            log.append(metadata(publish_time=log.end * 10), b"")
        elif step == "roll":
            log.roll()
        else:
            log.trim(log.first + (log.end - log.first) // 2)
    return log


@given(STEPS)
def test_positions_sort_as_indexes_and_are_found_again(steps: list[str]) -> None:
    log = log_of(steps)
    entries = list(log)
    assert [entry.index for entry in entries] == list(range(log.first, log.end))
    positions = [entry.position for entry in entries]
    assert positions == sorted(set(positions))
    for entry in entries:
        assert log[entry.index] is entry
        assert log.find(entry.position) is entry
        assert log.index_of(entry.position) == entry.index
        ledger, number = entry.position
        following = log.index_of((ledger, number + 1))
        assert following == entry.index + 1, "the next entry, also if it is in another ledger"
    assert log.index_of((-1, -1)) == log.first
    assert log.index_of(((1 << 64) - 1, (1 << 64) - 1)) == log.first, "-1 as the wire has it"
    assert log.index_of(((1 << 63) - 1, (1 << 63) - 1)) == log.end
    assert log.find((5, 0)) is None


@given(STEPS, st.integers(-5, 500))
def test_the_first_entry_from_a_time_on(steps: list[str], time: int) -> None:
    log = log_of(steps)
    found = log.index_at(time)
    assert all(entry.published_at < time for entry in log if entry.index < found)
    assert found == log.end or log[found].published_at >= time


def test_entries_that_were_trimmed_cannot_be_read() -> None:
    log = log_of(["append"] * 4)
    log.trim(3)
    assert (log.first, log.end, len(log)) == (3, 4, 1)
    assert log.index_of((10, 0)) == 3
    with pytest.raises(IndexError, match="entry 2 is before the first one, 3"):
        log[2]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"ordering_key": b"o", "partition_key": "k"}, b"o"),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "//8=", "partition_key_b64_encoded": True}, b"\xff\xff"),
        ({"sequence_id": 7}, b"p-7"),
    ],
)
def test_what_key_shared_subscriptions_divide_by(fields: dict[str, object], key: bytes) -> None:
    assert TopicLog().append(metadata(**fields), b"").key == key


def test_all_entries_are_trimmed() -> None:
    log = TopicLog()
    for _ in range(3):
        log.append(metadata(), b"")
    log.trim(5)
    assert (log.first, log.end, len(log)) == (3, 3, 0)
    assert log.append(metadata(), b"").index == 3
