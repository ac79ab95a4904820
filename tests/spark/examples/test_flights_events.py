"""The decoder of the flights pipeline: it decodes whole batches of JSON; an invalid value affects only its own row."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.demo.flights import find_data, read_flights

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from asyncgroup.spark.examples.flights.events import decode_flights, heartbeat  # noqa: E402  they need both

GOOD = b'{"row":7,"carrier":"UA","dep_delay":-3,"time_hour":"2013-01-01T10:00:00Z","minute":15,"gate":"B4"}'
ROW = {
    "row": 7,
    "carrier": "UA",
    "tailnum": None,
    "origin": None,
    "dep_delay": -3,
    "scheduled": datetime(2013, 1, 1, 10, 15, tzinfo=UTC),
}
NOTHING: dict[str, Any] = dict.fromkeys(ROW)

BAD: list[bytes | None] = [
    None,
    b"",
    b" ",
    b"no JSON",
    b"null",
    b"17",
    b'["row", 1]',
    b'{"row":1',
    b'{"row":"one"}',
    b'{"row":1.5}',
    b'{"row":99999999999}',
    b'{"carrier":5}',
    b'{"carrier":"\xff"}',
    b'{"time_hour":"yesterday"}',
    b'{"row":1}{"row":2}',
    b'{"row":1}\n{"row":2}',
    b'{"row":1} trailing',
]
"""Values that are not flights, each difficult for a parser that reads all values at once."""


def rows(*values: bytes | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decode_flights(pa.array(values, pa.binary())).to_pylist()
    return found


def test_flights_equal_the_json() -> None:
    flights = list(itertools.islice(read_flights(find_data()), 2_000))
    assert len(flights) == 2_000
    for flight, row in zip(flights, rows(*(flight.value for flight in flights)), strict=True):
        value = json.loads(flight.value)
        scheduled = row.pop("scheduled")
        assert row == {name: value[name] for name in row}
        assert scheduled.timestamp() == 60 * flight.scheduled


def test_no_values_give_no_rows() -> None:
    assert rows() == []


@pytest.mark.parametrize("bad", BAD)
def test_an_invalid_value_is_a_row_of_nulls(bad: bytes | None) -> None:
    assert rows(GOOD, bad, GOOD) == [ROW, NOTHING, ROW]


@given(st.lists(st.sampled_from([GOOD, b"{}", b'{"row":\n7}', heartbeat(86_400), *BAD]), max_size=12))
def test_a_row_depends_only_on_its_own_value(values: list[bytes | None]) -> None:
    assert rows(*values) == [row for value in values for row in rows(value)]


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_any_bytes_give_one_row_each(values: list[bytes]) -> None:
    assert len(rows(*values)) == len(values)


def test_a_slice_is_decoded_without_the_rest() -> None:
    values = pa.array([b"no JSON", GOOD, GOOD, b"no JSON"], pa.binary()).slice(1, 2)
    assert decode_flights(values).to_pylist() == [ROW, ROW]


def test_a_heartbeat_has_only_a_time() -> None:
    time = datetime(2014, 1, 31, 4, 59, tzinfo=UTC)
    assert rows(heartbeat(int(time.timestamp()))) == [{**NOTHING, "scheduled": time}]
