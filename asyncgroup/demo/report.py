"""What the demonstration reports at the end: its tables, differences from the figures of the CSV, seconds by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from rich import box
from rich.table import Table

from asyncgroup.counting import counted
from asyncgroup.demo.expected import LATE, StreakFigures
from asyncgroup.demo.flights import CarrierFigures, Figures
from asyncgroup.demo.sinks import FoundFlights

__all__ = ["Phases", "comparison", "differences", "longest_streaks", "verdict"]

SHOWN: Final = 5
"""The number of streaks in the table."""

NEW_YORK: Final = "America/New_York"

OTHER: Final = "other"
"""The name for the time outside all phases."""

# --- tables ------------------------------------------------------------------------------------------------------------


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


# --- differences -------------------------------------------------------------------------------------------------------


def differences(expected: Figures, found: FoundFlights) -> list[str]:
    """Describe the differences; empty if every flight arrived exactly once with the right figures."""
    texts = []
    missing = expected.flights - found.distinct
    if missing > 0 or found.missing:
        texts.append(
            f"{counted(missing, 'flight is', 'flights are')} missing: rows {_examples(found.missing, missing)} of the CSV"
        )
    more = found.figures.flights - found.distinct
    if more > 0:
        texts.append(
            f"{counted(more, 'flight is', 'flights are')} there more than once: rows {_examples(found.twice, more)} of the CSV"
        )
    nothing = CarrierFigures()
    for carrier in sorted(expected.carriers.keys() | found.figures.carriers.keys()):
        ours = found.figures.carriers.get(carrier, nothing)
        theirs = expected.carriers.get(carrier, nothing)
        for name in ("flights", "delays", "delay_sum"):
            if getattr(ours, name) != getattr(theirs, name):
                what = name.replace("_", " ")
                texts.append(
                    f"{carrier}: {what} {getattr(ours, name):,}, in the CSV {getattr(theirs, name):,}"
                )
    return texts


def verdict(expected: Figures, found: FoundFlights, wrong: list[str]) -> str:
    """Return the last line of the demonstration's output."""
    share = f"{found.distinct:,} of {counted(expected.flights, 'flight')}"
    return f"{share}, each exactly once" if not wrong else f"{share}; something went wrong, see above"


def _examples(rows: list[int], count: int) -> str:
    return ", ".join(map(str, rows)) + (", …" if count > len(rows) else "")


# --- time --------------------------------------------------------------------------------------------------------------


class Phases:
    """Seconds by phase, which add up to the time since the start, also when rounded."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._last = time()  # the end of the last lap
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's time to this phase; a name can be used repeatedly."""
        self._lap(OTHER)
        try:
            yield
        finally:
            self._lap(name)

    def _lap(self, name: str) -> None:
        now = self._time()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def seconds(self, digits: int) -> dict[str, float]:
        """Return the rounded seconds by phase, in the order in which they began, then `other`, then `all`, the sum."""
        self._lap(OTHER)
        names = [*(name for name in self._seconds if name != OTHER), OTHER]
        rounded, exact, shown = {}, 0.0, 0.0
        for name in names:
            # the running total is rounded instead of each number, so that the rounded numbers add up
            exact += self._seconds[name]
            rounded[name] = round(round(exact, digits) - shown, digits)
            shown = round(exact, digits)
        return {**rounded, "all": shown}

    def line(self) -> str:
        """Return a line such as `21.4 s: produce 3.2, group 12.1, other 6.1`."""
        seconds = self.seconds(1)
        total = seconds.pop("all")
        return f"{total:.1f} s: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
