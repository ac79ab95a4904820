"""Topics known to a group object: partitions and topics created or deleted since they were first seen."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup.cluster.metadata import PartitionInfo, TopicInfo
from asyncgroup.errors import ErrorCode
from asyncgroup.group.topics.topics import Absence, KnownTopics
from asyncgroup.model import TopicPartition
from asyncgroup.wire.messages import NO_UUID

A, B = UUID(int=1), UUID(int=2)


def topic(name: str, count: int, topic_id: UUID = A) -> TopicInfo:
    return TopicInfo(name, topic_id, {n: PartitionInfo(n, 1) for n in range(count)})


def added(known: KnownTopics, name: str, count: int) -> list[int]:
    return [n for n in range(count) if known.was_added(TopicPartition(name, n))]


@pytest.fixture
def known() -> KnownTopics:
    """No known topics."""
    return KnownTopics()


def test_an_unknown_topic_has_no_added_partitions() -> None:
    assert added(KnownTopics(), "t", 5) == []


def test_partitions_beyond_the_first_count_stay_added(known: KnownTopics) -> None:
    known.update([topic("t", 2)])
    assert added(known, "t", 2) == []
    known.update([topic("t", 4)])
    known.update([topic("t", 5)])
    assert added(known, "t", 5) == [2, 3, 4]
    assert "t" in known
    assert "u" not in known


def test_all_partitions_of_a_topic_created_after_its_pattern_was_matched_are_added() -> None:
    known = KnownTopics()
    known.update([topic("t", 2)])
    known.update([topic("t", 2), topic("u", 2)], are_new=True)
    assert added(known, "t", 2) == []
    assert added(known, "u", 2) == [0, 1]


def test_a_pattern_is_known_after_its_first_match(known: KnownTopics) -> None:
    assert not known.mark_matched(re.compile("a"))
    assert known.mark_matched(re.compile("a"))
    assert not known.mark_matched(re.compile("a", re.IGNORECASE))


def test_a_new_topic_id_means_a_recreated_topic(known: KnownTopics) -> None:
    known.update([topic("t", 2, A)])
    known.update([topic("t", 2, B)])
    assert added(known, "t", 2) == [0, 1]


def test_without_ids_a_recreation_is_not_recognized(known: KnownTopics) -> None:
    """Brokers before 2.8 have no ids, and metadata may lack one for a moment."""
    known.update([topic("t", 2, A)])
    known.update([topic("t", 2, NO_UUID)])
    known.update([topic("t", 2, A)])
    assert added(known, "t", 2) == []


def test_a_missing_topic_that_exists_again_is_new_whatever_its_id(known: KnownTopics) -> None:
    known.update([topic("t", 2, NO_UUID)])
    known.mark_absent("t", 5.0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    known.mark_absent("t", 9.0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert known.absent == {"t": Absence(5.0)}
    known.update([topic("t", 2, NO_UUID)])
    assert known.absent == {}
    assert added(known, "t", 2) == [0, 1]


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_topic_with_an_error_is_new_only_if_it_did_not_exist_meanwhile(*, is_missing: bool) -> None:
    known = KnownTopics()
    known.update([topic("t", 2)])
    known.mark_absent("t", 5.0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if is_missing:
        known.mark_absent("t", 6.0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    known.mark_absent("t", 7.0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert known.absent == {"t": Absence(5.0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    known.update([topic("t", 2)])
    assert known.absent == {}
    assert added(known, "t", 2) == ([0, 1] if is_missing else [])


def test_a_missing_topic_that_was_never_seen_is_new_when_it_exists(known: KnownTopics) -> None:
    known.mark_absent("t", 5.0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert "t" not in known
    known.update([topic("t", 2)])
    assert added(known, "t", 2) == [0, 1]


@given(st.lists(st.integers(1, 20), min_size=1))
def test_any_sequence_of_counts_adds_partitions(counts: list[int]) -> None:
    known = KnownTopics()
    for count in counts:
        known.update([topic("t", count)])
    assert added(known, "t", 25) == list(range(counts[0], 25))
