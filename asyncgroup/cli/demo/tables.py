"""The tables that the demonstration prints at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from rich import box
from rich.table import Table

from asyncgroup.cli.demo.expected import LATE, StreakFigures
from asyncgroup.cli.demo.flights import Figures
from asyncgroup.cli.demo.sinks import FoundFlights

__all__ = ["comparison", "longest_streaks"]

SHOWN: Final = 5
"""The number of streaks in the table."""

NEW_YORK: Final = "America/New_York"


def comparison(expected: Figures, found: FoundFlights, names: dict[str, str], source: str) -> Table:
    """Return a table of flights and mean departure delay by carrier, with the CSV's figures; different rows are red."""
    table = _table(f"flights and mean departure delay in minutes, as {source}")
    table.add_column("carrier", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for name in ("flights", "CSV", "mean delay", "CSV"):
        table.add_column(name, justify="right", no_wrap=True)
    ours, theirs = found.figures.carriers, expected.carriers

    def flights(code: str) -> int:
        return theirs[code].flights if code in theirs else 0

    for carrier in sorted(ours.keys() | theirs.keys(), key=flights, reverse=True):
        here, there = ours.get(carrier), theirs.get(carrier)
        table.add_row(
            carrier,
            names.get(carrier, ""),
            f"{here.flights:,}" if here else "-",
            f"{there.flights:,}" if there else "-",
            _minutes(here.mean_delay if here else None),
            _minutes(there.mean_delay if there else None),
            style="" if here == there else "red",
        )
    return table


def longest_streaks(streaks: Sequence[StreakFigures], names: dict[str, str]) -> Table:
    """Return a table of the longest streaks, with local times of New York."""
    table = _table(
        f"longest of {len(streaks):,} streaks of departures {LATE} minutes late or more, from their topic"
    )
    table.add_column("carrier", no_wrap=True, overflow="ellipsis")
    for name in ("scheduled from", "to"):
        table.add_column(name, no_wrap=True)
    for name in ("flights", "mean delay"):
        table.add_column(name, justify="right", no_wrap=True)
    clock = _clock()
    for each in sorted(streaks, key=lambda streak: (-streak.flights, streak))[:SHOWN]:
        times = clock(each.first), clock(each.last)
        figures = f"{each.flights:,}", _minutes(each.mean_delay)
        table.add_row(names.get(each.carrier, each.carrier), *times, *figures)
    return table


def _table(title: str) -> Table:
    return Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"\n{title}", title_justify="left", title_style=""
    )


def _minutes(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.2f}"


def _clock() -> Callable[[int], str]:
    zone = ZoneInfo(NEW_YORK)
    return lambda minutes: f"{datetime.fromtimestamp(60 * minutes, UTC).astimezone(zone):%m-%d %H:%M}"
