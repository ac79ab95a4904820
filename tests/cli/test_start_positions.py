"""The arguments that say where `consume` starts: partitions, offsets and times."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from asyncgroup.cli.instants import NoZone, parse_instant
from asyncgroup.cli.offset_spans import OffsetSpan
from asyncgroup.cli.start_positions import LogOffset, parse_offset, parse_partitions, parse_start
from asyncgroup.errors import UsageError

CET = timezone(timedelta(hours=1))
MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17", LogOffset("", 17)),
        ("0", LogOffset("", 0)),
        ("-5", LogOffset("-", 5)),
        ("+5", LogOffset("+", 5)),
        (str(MAX), LogOffset("", MAX)),
        ("earliest", "earliest"),
        ("beginning", "earliest"),
        ("start", "earliest"),
        ("latest", "latest"),
        ("END", "latest"),
    ],
)
def test_offsets(text: str, expected: object) -> None:
    assert parse_offset(text) == expected


@pytest.mark.parametrize("text", ["", "-", "1.5", "stored", "--5", " 5", "٣", str(MAX + 1), "@1700000000000"])
def test_what_is_not_an_offset(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not an offset, ") as caught:
        parse_offset(text)
    assert ("--from takes a time" in str(caught.value)) == ("@" in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("end", "latest"),
        ("2026-11-27T10:00Z", datetime(2026, 11, 27, 10, tzinfo=UTC)),
        ("2026-11-27 10:00:00.5Z", datetime(2026, 11, 27, 10, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-11-27T10:00+01:00", datetime(2026, 11, 27, 10, tzinfo=CET)),
        ("1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)),
        ("1700000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("24h", timedelta(days=1)),
        ("-7d", timedelta(days=7)),
        ("PT24H", timedelta(days=1)),
    ],
)
def test_times(text: str, expected: object) -> None:
    assert parse_start(text) == expected


@pytest.mark.parametrize("text", ["2026-11-27", "2026-11-27T10:00", "2026-11-27 10:00:00.123"])
def test_a_time_needs_its_zone_as_in_the_other_commands(text: str) -> None:
    for parse in (parse_start, parse_instant):
        with pytest.raises(NoZone, match="has no zone: append Z for UTC"):
            parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "0s", "1w", "1h30m", "17", "17000000000", "20261127", "2026-13-01", "2026-11-27T25:00"],
)
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"is not earliest, latest, a time with its zone such as 2026-"
    ):
        parse_start(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("0", [0]), ("2, 0,1", [2, 0, 1]), ("2147483647", [2**31 - 1])]
)
def test_partitions(text: str, expected: list[int]) -> None:
    assert parse_partitions(text) == expected


@pytest.mark.parametrize("text", ["", "1,", "-1", "a", "0-3", "2147483648", "٣"])
def test_what_is_not_a_partition(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a partition, or several"):
        parse_partitions(text)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (LogOffset("", 5), 5),
        (LogOffset("", 7), 7),
        (LogOffset("", 10), 10),
        (LogOffset("+", 0), 5),
        (LogOffset("+", 3), 8),
        (LogOffset("+", 99), 10),
        (LogOffset("-", 0), 10),
        (LogOffset("-", 3), 7),
        (LogOffset("-", 99), 5),
    ],
)
def test_an_offset_within_a_log(offset: LogOffset, expected: int) -> None:
    assert offset.within("t", OffsetSpan(3, 5, 10)) == expected


@pytest.mark.parametrize(
    ("span", "has"),
    [
        (OffsetSpan(3, 5, 10), "has offsets 5 to 9"),
        (OffsetSpan(3, 12, 13), "has offset 12"),
        (OffsetSpan(3, 7, 7), "is empty"),
    ],
)
@pytest.mark.parametrize("number", [4, 14])
def test_an_offset_outside_the_log(span: Any, has: str, number: int) -> None:
    with pytest.raises(UsageError) as caught:
        LogOffset("", number).within("t", span)
    assert str(caught.value) == f"t-3@{number}: no such offset; t-3 {has}"
