"""The flights and the figures that are computed from them directly."""

from __future__ import annotations

import importlib.util
import json

import pytest

from asyncgroup.cli.demo.flights import DataMissing, Figures, Flight, airlines, find_data, read_flights


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return list(read_flights(find_data()))


def test_the_figures_of_2013(flights: list[Flight]) -> None:
    figures = Figures()
    for flight in flights:
        figures.add(flight.carrier, flight.dep_delay)
    assert figures.flights == len(flights) == 336_776
    assert len(figures.carriers) == 16
    # known from R's nycflights13: mean(flights$dep_delay, na.rm = TRUE) by carrier
    means = {"EV": 19.96, "UA": 12.11, "HA": 4.90, "US": 3.78, "F9": 20.22}
    for carrier, mean in means.items():
        assert figures.carriers[carrier].mean_delay == pytest.approx(mean, abs=0.005)
    assert sum(each.delays for each in figures.carriers.values()) == 336_776 - 8_255
    assert figures.carriers["UA"].flights == 58_665


def test_values_are_json_with_numbers_and_nulls(flights: list[Flight]) -> None:
    assert json.loads(flights[0].value) == {
        "row": 1,
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }
    last = json.loads(flights[-1].value)
    assert (last["row"], last["dep_delay"], last["carrier"]) == (336_776, None, "MQ")
    assert flights[-1].dep_delay is None


def test_every_value_can_be_read(flights: list[Flight]) -> None:
    text = {"carrier", "tailnum", "origin", "dest", "time_hour"}
    for flight in flights[::97]:
        value = json.loads(flight.value)
        assert (value["row"], value["carrier"], value["dep_delay"]) == flight[:3]
        for name, cell in value.items():
            assert cell is None or type(cell) is (str if name in text else int), (name, cell)
            assert cell != "NA"


def test_airlines_have_names() -> None:
    names = airlines(find_data())
    assert names["UA"] == "United Air Lines Inc."
    assert len(names) == 16


def test_missing_data_are_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataMissing, match=r"pip install 'asyncgroup\[demo\]'"):
        find_data()
