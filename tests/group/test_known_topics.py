"""What a group object remembers of topics."""

from __future__ import annotations

import re
from uuid import UUID

from hypothesis import given, strategies as st

from asyncgroup.cluster.metadata import PartitionInfo, TopicInfo
from asyncgroup.group.known_topics import KnownTopics
from asyncgroup.model import TopicPartition
from asyncgroup.wire.messages import NO_UUID

A, B = UUID(int=1), UUID(int=2)


def topic(name: str, count: int, topic_id: UUID = A) -> TopicInfo:
    return TopicInfo(name, topic_id, {n: PartitionInfo(n, 1) for n in range(count)})


def added(known: KnownTopics, name: str, count: int) -> list[int]:
    return [n for n in range(count) if known.was_added(TopicPartition(name, n))]


def test_of_an_unknown_topic_nothing_is_added() -> None:
    assert added(KnownTopics(), "t", 5) == []


def test_partitions_beyond_the_first_count_are_added_for_good() -> None:
    known = KnownTopics()
    known.update([topic("t", 2)])
    assert added(known, "t", 2) == []
    known.update([topic("t", 4)])
    known.update([topic("t", 5)])
    assert added(known, "t", 5) == [2, 3, 4]
    assert "t" in known
    assert "u" not in known


def test_a_topic_that_came_while_its_pattern_was_watched_is_all_new() -> None:
    known = KnownTopics()
    known.update([topic("t", 2)])
    known.update([topic("t", 2), topic("u", 2)], are_new=True)
    assert added(known, "t", 2) == []
    assert added(known, "u", 2) == [0, 1]


def test_a_pattern_is_known_from_its_second_look_on() -> None:
    known = KnownTopics()
    assert not known.mark_matched(re.compile("a"))
    assert known.mark_matched(re.compile("a"))
    assert not known.mark_matched(re.compile("a", re.IGNORECASE))


def test_another_id_is_another_topic() -> None:
    known = KnownTopics()
    known.update([topic("t", 2, A)])
    known.update([topic("t", 2, B)])
    assert added(known, "t", 2) == [0, 1]


def test_without_ids_nothing_is_known_of_a_new_one() -> None:
    """Brokers before 2.8 have none; and a view may lack one for a moment."""
    known = KnownTopics()
    known.update([topic("t", 2, A)])
    known.update([topic("t", 2, NO_UUID)])
    known.update([topic("t", 2, A)])
    assert added(known, "t", 2) == []


def test_one_that_was_missed_and_came_back_is_new_whatever_its_id() -> None:
    known = KnownTopics()
    known.update([topic("t", 2, NO_UUID)])
    known.mark_missing("t", 5.0)
    known.mark_missing("t", 9.0)
    assert known.missing == {"t": 5.0}
    known.update([topic("t", 2, NO_UUID)])
    assert known.missing == {}
    assert added(known, "t", 2) == [0, 1]


def test_one_that_was_given_up_is_as_if_it_had_never_been() -> None:
    known = KnownTopics()
    known.update([topic("t", 2), topic("u", 2)])
    known.mark_missing("t", 5.0)
    known.forget_missing(["t", "u", "never"])
    assert known.missing == {}
    assert "t" not in known
    assert "u" in known


@given(st.lists(st.integers(1, 20), min_size=1))
def test_growth_only_ever_adds(counts: list[int]) -> None:
    known = KnownTopics()
    for count in counts:
        known.update([topic("t", count)])
    assert added(known, "t", 25) == list(range(counts[0], 25))
