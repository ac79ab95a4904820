"""Points in time and durations as arguments: with a zone, as Kafka's tools write durations, and wrong ones."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

import pytest

from asyncgroup.cli.instants import NoZone, parse_duration, parse_instant, parse_time, timestamp_of_instant


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90s", timedelta(seconds=90)),
        ("7d", timedelta(days=7)),
        ("PT24H", timedelta(days=1)),
        ("P1DT2H3M4S", timedelta(days=1, hours=2, minutes=3, seconds=4)),
    ],
)
def test_durations(text: str, found: timedelta) -> None:
    assert parse_duration(text) == found
    assert parse_instant(text) == found
    with pytest.raises(argparse.ArgumentTypeError, match="is a duration, not a time"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "0s", "PT", "P", "1w", "-5m", "PT0S", "P999999999DT999999999H"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration such as 90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00", "1700000000", "1700000000000"]
)
def test_times(text: str) -> None:
    time = parse_time(text)
    assert time == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert timestamp_of_instant(time) == 1_700_000_000_000


def test_a_time_is_rounded_up_to_milliseconds() -> None:
    assert timestamp_of_instant(parse_time("2023-11-14T22:13:20.0001Z")) == 1_700_000_000_001


def test_a_time_needs_its_zone() -> None:
    for text in ("2026-11-27T10:00", "2026-11-27"):
        with pytest.raises(NoZone, match="has no zone: append Z for UTC"):
            parse_instant(text)


@pytest.mark.parametrize(
    "text", ["", "2026-13-01T00:00Z", "yesterday", "17000", "latest", "0001-01-01T00:00+23:00"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time with its zone"):
        parse_instant(text)
