"""The progress of `asyncgroup work`: a live table on a terminal, status lines otherwise, or JSON for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from asyncgroup.cli.printing import json_object
from asyncgroup.counting import counted, rate
from asyncgroup.escaping import printable
from asyncgroup.lifecycle import wait_within

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from asyncgroup.group import Health
    from asyncgroup.workqueue import PartitionStatistics, QueueStatistics

__all__ = ["COUNTS", "QueueView", "ShownQueue", "Snapshot", "show_json", "show_lines", "show_live"]

LIVE_INTERVAL: Final = 0.5
"""Seconds between two updates of the live table."""
JSON_INTERVAL: Final = 1.0
"""Seconds between two JSON objects."""
LINE_INTERVAL: Final = 10.0
"""Seconds between two status lines."""
MAX_PARTITIONS: Final = 12
"""Partitions in the live table: those with the largest lag."""

COUNTS: Final[Mapping[str, str]] = {
    "delivered": "delivered",
    "acked": "acked",
    "nacked": "nacked",
    "expired": "expired",
    "reconsumed": "to retry topics",
    "dead_lettered": "to dead letter topics",
}
"""The counts of a queue's statistics, and their names on the screen."""


class ShownQueue(Protocol):
    """The part of a WorkQueue that is shown."""

    def statistics(self) -> QueueStatistics:
        """Return the counts, and the records by state."""

    def health(self) -> Health:
        """Return the health of the group member."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The statistics of a queue at one time."""

    elapsed: float
    """Seconds since the queue was opened."""
    counts: Mapping[str, int]
    """Since the queue was opened, by the names in `COUNTS`."""
    rates: Mapping[str, float]
    """Per second since the last snapshot."""
    statistics: QueueStatistics
    problems: tuple[str, ...]
    """The problems of the queue and its group member now."""

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot for JSON."""
        rates = {name: round(each, 1) for name, each in self.rates.items()}
        return {
            "seconds": round(self.elapsed, 3),
            **self.statistics.as_dict(),
            "rates": rates,
            "problems": list(self.problems),
        }

    def line(self) -> str:
        """Return the snapshot as a status line."""
        parts = [f"{self.counts['acked']:,} acked ({self.rates['acked']:,.0f}/s)"]
        parts += [f"{value:,} {name}" for value, name in self._places()]
        parts += [
            f"{self.counts[name]:,} {shown}"
            for name, shown in COUNTS.items()
            if name not in ("delivered", "acked")
        ]
        return ", ".join([*parts, f"lag {self.statistics.lag:,}", *self.problems])

    def _places(self) -> list[tuple[int, str]]:
        now = self.statistics
        return [(now.acquired, "acquired"), (now.queued, "queued"), (now.waiting, "waiting")]

    def render(self, title: str) -> RenderableType:
        """Return the live table."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        counts = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        counts.add_column("records", min_width=22)
        counts.add_column("total", min_width=12, justify="right")
        counts.add_column("per second", min_width=10, justify="right")
        for name, shown in COUNTS.items():
            counts.add_row(shown, f"{self.counts[name]:,}", f"{self.rates[name]:,.0f}")
        for value, shown in self._places():
            counts.add_row(shown, f"{value:,}", "")
        problems = [Text(f"  {problem}", "yellow") for problem in self.problems]
        return Group(Text(title, "bold"), counts, self._partitions(), *problems)

    def _partitions(self) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("partition", min_width=22)
        for name in ("lag", "queued", "acquired", "waiting"):
            table.add_column(name, min_width=9, justify="right")
        all_of_them = self.statistics.partitions
        for each in sorted(all_of_them, key=lambda each: (-each.lag, each.tp))[:MAX_PARTITIONS]:
            figures = (each.lag, each.queued, each.acquired, each.waiting)
            full = " (full)" if each.is_full else ""
            table.add_row(f"{each.tp}{full}", *(f"{figure:,}" for figure in figures))
        if (more := len(all_of_them) - MAX_PARTITIONS) > 0:
            table.add_row(f"{more} more", "", "", "", "")
        if not all_of_them:
            table.add_row("none assigned", "", "", "", "")
        return table


class QueueView:
    """Takes snapshots of a queue."""

    def __init__(self, queue: ShownQueue, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._begun_at = self._last_at = clock()
        self._last = dict.fromkeys(COUNTS, 0)
        self._partitions: tuple[PartitionStatistics, ...] = ()
        self.is_closing = False
        """Set when the queue is being closed: no problems are shown, because the member leaves the group, and the
        partitions whose claims have ended are those before."""

    def snapshot(self) -> Snapshot:
        """Return the statistics now, with the rates since the last call."""
        statistics, health = self._queue.statistics(), self._queue.health()
        if self.is_closing or statistics.at_close:
            known = (*self._partitions, *statistics.at_close, *statistics.partitions)
            by_partition = {each.tp: each for each in known}
            statistics = replace(
                statistics, partitions=tuple(by_partition[tp] for tp in sorted(by_partition))
            )
        self._partitions = statistics.partitions
        now = self._clock()
        passed = now - self._last_at
        counts = {name: int(getattr(statistics.counts, name)) for name in COUNTS}
        rates = {name: (counts[name] - self._last[name]) / passed if passed > 0 else 0.0 for name in COUNTS}
        self._last, self._last_at = counts, now
        problems = () if self.is_closing else tuple(printable(problem) for problem in health.problems)
        return Snapshot(now - self._begun_at, counts, rates, statistics, problems)

    def summary(self) -> str:
        """Return the line that is printed at the end."""
        counts = self._queue.statistics().counts
        duration = self._clock() - self._begun_at
        rest = ", ".join(
            f"{getattr(counts, name):,} {shown}" for name, shown in COUNTS.items() if name != "acked"
        )
        return f"{counted(counts.acked, 'record')} acked in {duration:.1f} s: {rate(counts.acked, duration)}; {rest}"


# --- showing ----------------------------------------------------------------------------------------------------------


async def show_live(view: QueueView, stop: asyncio.Event, title: str) -> None:
    """Show the table on standard error until `stop` is set; output of the handler appears above it."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    # a handler's output that goes to a pipe or a file must stay there
    shares_terminal = sys.stdout is not None and sys.stdout.isatty()
    with Live(console=console, auto_refresh=False, redirect_stdout=shares_terminal) as live:
        while not stop.is_set():
            live.update(view.snapshot().render(title), refresh=True)
            await wait_within(stop, LIVE_INTERVAL)
        live.update(view.snapshot().render(title), refresh=True)


async def show_lines(view: QueueView, stop: asyncio.Event) -> None:
    """Print a status line to standard error every 10 seconds until `stop` is set."""
    while not await wait_within(stop, LINE_INTERVAL):
        print(view.snapshot().line(), file=sys.stderr, flush=True)


async def show_json(view: QueueView, stop: asyncio.Event) -> None:
    """Print a JSON object to standard output every second and at the end. Raises BrokenPipeError, OSError."""
    while not await wait_within(stop, JSON_INTERVAL):
        await _print_json(view.snapshot(), final=False)
    await _print_json(view.snapshot(), final=True)


async def _print_json(snapshot: Snapshot, *, final: bool) -> None:
    text = json_object({**snapshot.as_dict(), "final": final})
    # in a thread: a reader that does not read must not block the heartbeats; one write, as the handler may also print
    await asyncio.to_thread(print, f"{text}\n", end="", flush=True)
