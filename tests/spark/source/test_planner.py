"""Planned ranges and detected losses of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.config import ConsumerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.planner import check_available_now, plan_batch, split_into_tasks
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options.settings import Earliest, ReadSettings, Subscribe
from tests.spark.source.driver_support import TOPIC, offsets, tp

PLACES = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)), st.integers(0, 100)
)


def reads(*ranges: tuple[int, int, int]) -> list[OffsetRange]:
    return [OffsetRange(TOPIC, *one) for one in ranges]


def codes(losses: list[SourceError]) -> list[str]:
    return [loss.code.removeprefix("KAFKA_DATA_LOSS.") for loss in losses]


def test_a_range_for_each_partition_with_new_records() -> None:
    found = plan_batch(offsets(5, 7, 0), offsets(9, 7, 3), {})
    assert found.ranges == reads((0, 5, 9), (2, 0, 3))
    assert found.losses == []


def test_a_new_partition_begins_at_its_start() -> None:
    found = plan_batch(offsets(5), offsets(9, 4), {tp(1): 0})
    assert found.ranges == reads((0, 5, 9), (1, 0, 4))
    assert found.losses == []


def test_a_new_partition_without_its_first_records() -> None:
    found = plan_batch(offsets(5), offsets(5, 4), {tp(1): 2})
    assert found.ranges == reads((1, 2, 4))
    assert codes(found.losses) == ["ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"]


def test_a_new_partition_that_was_deleted_again() -> None:
    found = plan_batch(offsets(5), offsets(6, 4), {})
    assert found.ranges == reads((0, 5, 6))
    assert codes(found.losses) == ["INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"]


@pytest.mark.parametrize(
    ("group_id", "code"),
    [(None, "PARTITIONS_DELETED"), ("g", "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT")],
)
def test_deleted_partitions(group_id: str | None, code: str) -> None:
    found = plan_batch(offsets(5, 7), offsets(9), {}, group_id=group_id)
    assert found.ranges == reads((0, 5, 9))
    assert codes(found.losses) == [code]
    assert f"{TOPIC}-1" in str(found.losses[0])


def test_offsets_that_go_back() -> None:
    found = plan_batch(offsets(5, 7), offsets(2, 9), {})
    assert found.ranges == reads((1, 7, 9))
    assert codes(found.losses) == ["PARTITION_OFFSET_CHANGED"]


def test_a_repeated_first_batch_may_start_after_its_end() -> None:
    """Its start was looked up again; if it is the end of the log, it is greater by now."""
    found = plan_batch(offsets(50, 7), offsets(20, 9), {}, replays_first=True)
    assert found.ranges == reads((1, 7, 9))
    assert found.losses == []


@given(PLACES, PLACES, PLACES)
def test_no_offset_is_read_twice_or_skipped_without_a_loss(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int], earliest: dict[TopicPartition, int]
) -> None:
    new = {place: offset for place, offset in earliest.items() if place in end and place not in start}
    found = plan_batch(start, end, new)
    begins = new | start
    assert {(r.topic, r.partition): (r.start, r.end) for r in found.ranges} == {
        place: (begins[place], end[place]) for place in end if begins.get(place, end[place]) < end[place]
    }
    assert len(found.ranges) == len({(r.topic, r.partition) for r in found.ranges})
    lost = (
        bool(start.keys() - end.keys())
        or any(place not in begins or end[place] < begins[place] for place in end)
        or any(new.values())
    )
    assert bool(found.losses) is lost


@pytest.mark.parametrize(
    ("end", "latest", "code"),
    [
        (offsets(5), offsets(9, 9), "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED"),
        (
            offsets(5, 10),
            offsets(99, 99),
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
        ),
        (offsets(9, 9), offsets(9), "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW"),
        (
            offsets(9, 9),
            offsets(9, 8),
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
        ),
    ],
)
def test_a_batch_of_available_now_ends_within_the_offsets_found_at_its_start(
    end: dict[TopicPartition, int], latest: dict[TopicPartition, int], code: str
) -> None:
    check_available_now(offsets(9, 9), offsets(9, 9), offsets(9, 9))
    with pytest.raises(SourceError) as caught:
        check_available_now(offsets(9, 9), end, latest)
    assert caught.value.code == code


def test_a_batch_planned_before_available_now_may_have_fewer_partitions() -> None:
    check_available_now(offsets(9, 9), offsets(5), offsets(9, 9), replayed=True)


def test_ranges_are_split_and_combined_in_tasks() -> None:
    settings = ReadSettings(
        "h:1", ConsumerConfig(), Subscribe((TOPIC,)), Earliest(), max_records_per_partition=10, tasks=2
    )
    tasks = split_into_tasks(reads((0, 0, 20), (1, 0, 10)), settings)
    assert len(tasks) == 2
    pieces = sorted(piece for task in tasks for piece in task)
    assert pieces == reads((0, 0, 10), (0, 10, 20), (1, 0, 10))
