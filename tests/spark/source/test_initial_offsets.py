"""Resolving the options for starts and ends to offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.driver.initial_offsets import Position, is_reproducible, resolve_offsets
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options import settings
from tests.spark.source.driver_support import offsets, tp

FIRST, LAST = offsets(10, 20), offsets(100, 200)


class Log:
    """Partition 0 has the offsets 10 to 100, partition 1 20 to 200; timestamps equal offsets; only 0 has a commit."""

    async def assigned(self) -> Iterable[TopicPartition]:
        return {tp(1), tp(0)}

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, or_end: bool = True
    ) -> dict[TopicPartition, int]:
        if not or_end:
            return {p: max(FIRST[p], time) if time < LAST[p] else -1 for p, time in wanted.items()}
        assert set(wanted.values()) <= {EARLIEST, LATEST}
        return {place: (FIRST if spec == EARLIEST else LAST)[place] for place, spec in wanted.items()}

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: 55 for place in partitions if place.partition == 0}


async def found(limit: settings.OffsetLimit, position: Position = "start") -> dict[TopicPartition, int]:
    return await resolve_offsets(limit, Log(), position=position, group_id="g")


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        (settings.Earliest(), FIRST),
        (settings.Latest(), LAST),
        (settings.Specific(offsets(12, 500)), offsets(12, 500)),
        (settings.Specific(offsets(-2, -1)), offsets(10, 200)),
        (settings.ByTimestamp(offsets(30, 0)), offsets(30, 20)),
        (settings.ByTimestamp(offsets(100, 0), "latest"), offsets(100, 20)),
        (settings.AtTimestamp(50), offsets(50, 50)),
        (settings.AtTimestamp(150, "latest"), offsets(100, 150)),
        (settings.FromGroup("earliest"), offsets(55, 20)),
        (settings.FromGroup("latest"), offsets(55, 200)),
    ],
)
async def test_each_kind_of_start(limit: settings.OffsetLimit, wanted: dict[TopicPartition, int]) -> None:
    assert await found(limit) == wanted


@pytest.mark.parametrize(
    ("limit", "code", "names"),
    [
        (settings.Specific(offsets(1)), "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED", "orders-1"),
        (settings.Specific(offsets(1, 1, 1)), "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED", "orders-2"),
        (settings.ByTimestamp(offsets(1)), "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED", "start"),
        (settings.AtTimestamp(150), "ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP", "orders-0"),
        (settings.FromGroup("error"), "ASYNCGROUP_NO_COMMITTED_OFFSET", "orders-1"),
    ],
)
async def test_limits_that_do_not_fit_raise_errors_with_codes(
    limit: settings.OffsetLimit, code: str, names: str
) -> None:
    with pytest.raises(SourceError) as caught:
        await found(limit)
    assert caught.value.code == code
    assert names in str(caught.value)


async def test_an_ending_timestamp_after_all_records_is_the_end_of_the_log() -> None:
    assert await found(settings.AtTimestamp(150), "end") == offsets(100, 150)
    with pytest.raises(SourceError, match="end offsets"):
        await found(settings.ByTimestamp(offsets(1)), "end")


def test_reproducible_starts() -> None:
    assert is_reproducible(settings.Earliest())
    assert is_reproducible(settings.Specific(offsets(5, -2)))
    assert not any(
        map(
            is_reproducible,
            [
                settings.Latest(),
                settings.Specific(offsets(5, -1)),
                settings.AtTimestamp(5),
                settings.FromGroup("earliest"),
            ],
        )
    )
