"""What is seen: a live table at a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Final

from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from asyncgroup.cli.demo.flights import Figures
from asyncgroup.cli.demo.members import Member
from asyncgroup.cli.demo.progress import Progress
from asyncgroup.cli.demo.sinks import Found

__all__ = ["Screen"]

LIVE: Final = 0.2
PLAIN: Final = 1.5
"""Seconds between two pictures of the group, at a terminal and elsewhere."""

STATES: Final = {
    "joining": "yellow",
    "rejoining": "yellow",
    "consuming": "green",
    "draining": "yellow",
    "leaving": "magenta",
    "left": "dim",
}


class Screen:
    """Everything the demonstration prints, apart from its JSON result."""

    def __init__(self, *, to_stderr: bool) -> None:
        terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
        self.console = Console(stderr=to_stderr, highlight=False, width=None if terminal else 80)

    @property
    def is_live(self) -> bool:
        return self.console.is_terminal

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        self.console.print(Text(text, style), soft_wrap=True)

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """A word about what takes its time, with a spinner that goes away at the end of the block."""
        return self.console.status(what) if self.is_live else nullcontext()

    # --- while records are produced ------------------------------------------------------------------------------

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Bars]:
        """A progress bar with one task, number 0; nothing is seen of it elsewhere than at a terminal."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=self.console, transient=True, disable=not self.is_live) as bars:
            bars.add_task(what, total=total)
            yield bars

    # --- while they are consumed ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch(
        self, members: Sequence[Member], progress: Progress, events: Sequence[str]
    ) -> AsyncIterator[None]:
        """Show the group while the block runs; `members` and `events` may grow meanwhile."""
        show = self._show_live if self.is_live else self._show_lines
        stop = asyncio.Event()
        showing = asyncio.create_task(show(members, progress, events, stop), name="screen")
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait([showing])
        showing.result()

    async def _show_live(
        self, members: Sequence[Member], progress: Progress, events: Sequence[str], stop: asyncio.Event
    ) -> None:
        from rich.live import Live

        with Live(console=self.console, auto_refresh=False) as live:
            while not stop.is_set():
                live.update(picture(members, progress, events), refresh=True)
                await _wait(stop, LIVE)
            live.update(picture(members, progress, events), refresh=True)

    async def _show_lines(
        self, members: Sequence[Member], progress: Progress, events: Sequence[str], stop: asyncio.Event
    ) -> None:
        said = 0
        while not stop.is_set():
            await _wait(stop, PLAIN)
            for event in events[said:]:
                self.say(f"  {event}")
            said = len(events)
            self.say(f"  {line(members, progress)}")

    # --- the end -------------------------------------------------------------------------------------------------

    def result(self, expected: Figures, found: Found, names: dict[str, str], source: str) -> None:
        """Flights and mean departure delay by carrier, beside the figures of the CSV."""
        self.console.print(comparison(expected, found, names, source))


def picture(members: Sequence[Member], progress: Progress, events: Sequence[str]) -> RenderableType:
    """The group as a table, with a bar and what happened so far below it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("member", min_width=9)
    table.add_column("state", min_width=10)
    for name, width in (("generation", 10), ("claims", 7), ("lag", 8), ("records/s", 9), ("records", 8)):
        table.add_column(name, min_width=width, justify="left" if name == "claims" else "right")
    for member in members:
        session = member.session
        table.add_row(
            member.name,
            Text(member.state, STATES[member.state]),
            str(session.generation_id) if session is not None else "-",
            " ".join(str(claim.partition) for claim in member.claims) or "-",
            f"{member.lag:,}" if session is not None else "-",
            f"{member.meter.rate:,.0f}" if member.state != "left" else "-",
            f"{member.committed:,}",
        )
    share = progress.handled / progress.total
    done = Table.grid(padding=(0, 1))
    done.add_row(
        Bar(progress.total, 0, progress.handled, width=24, color="green"),
        f"{share:4.0%}  {progress.handled:,} of {progress.total:,} records  {progress.meter.rate:,.0f} records/s",
    )
    return Group(table, done, *(Text(f"  {event}", "cyan") for event in events))


def line(members: Sequence[Member], progress: Progress) -> str:
    """The group in one line."""
    present = [member for member in members if member.state != "left"]
    sessions = [member.live_session for member in present if member.live_session is not None]
    settled = (
        f"generation {sessions[0].generation_id}"
        if len(sessions) == len(present) and sessions
        else "rebalancing"
    )
    return (
        f"{progress.handled:>9,} of {progress.total:,} records ({progress.handled / progress.total:4.0%})"
        f"  {progress.meter.rate:>8,.0f} records/s  {len(present)} members, {settled}"
    )


def comparison(expected: Figures, found: Found, names: dict[str, str], source: str) -> Table:
    """Both figures of each carrier side by side; a line that differs is red."""
    title = f"\nflights and mean departure delay in minutes, as {source}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="")
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


def _minutes(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.2f}"


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
