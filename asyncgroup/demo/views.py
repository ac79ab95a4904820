"""The progress of the group and of Spark's queries on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncgroup.counting import counted
from asyncgroup.demo.members import DemoMember
from asyncgroup.demo.progress import GroupProgress

if TYPE_CHECKING:
    from asyncgroup.demo.queries import Queries
    from asyncgroup.spark.examples.flights.pipeline import QueryProgress

__all__ = ["GroupProgressView", "QueryProgressView"]

STATE_COLORS: Final = {
    "joining": "yellow",
    "rejoining": "yellow",
    "consuming": "green",
    "draining": "yellow",
    "leaving": "magenta",
    "left": "dim",
}


class GroupProgressView:
    """Shows the members, the progress of the group, and its rebalances."""

    def __init__(self, members: Sequence[DemoMember], progress: GroupProgress, events: Sequence[str]) -> None:
        self._members = members
        self._progress = progress
        self._events = events
        self._printed = 0  # events that `lines` has returned already

    def render(self) -> RenderableType:
        """Return a table of the members, a progress bar, and the events."""
        progress = self._progress
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("member", min_width=9)
        table.add_column("state", min_width=10)
        for name, width in (("generation", 10), ("claims", 7), ("lag", 8), ("records/s", 9), ("records", 8)):
            table.add_column(name, min_width=width, justify="left" if name == "claims" else "right")
        for member in self._members:
            table.add_row(*_row(member))
        done = Table.grid(padding=(0, 1))
        done.add_row(
            Bar(progress.total, 0, progress.committed_records, width=24, color="green"),
            f"{progress.committed_records / progress.total:4.0%}  {progress.committed_records:,} of {counted(progress.total, 'record')}"
            f"  {progress.meter.rate:,.0f} records/s",
        )
        return Group(table, done, *(Text(f"  {event}", "cyan") for event in self._events))

    def lines(self) -> Iterator[str]:
        """Yield the events since the last call, and a line about the group."""
        new = self._events[self._printed :]
        self._printed += len(new)
        yield from new
        yield line(self._members, self._progress)


def _row(member: DemoMember) -> list[str | Text]:
    session = member.session
    return [
        member.name,
        Text(member.state, STATE_COLORS[member.state]),
        str(session.generation_id) if session is not None else "-",
        " ".join(str(claim.partition) for claim in member.claims) or "-",
        f"{member.lag:,}" if session is not None else "-",
        f"{member.meter.rate:,.0f}" if member.state != "left" else "-",
        f"{member.committed:,}",
    ]


def line(members: Sequence[DemoMember], progress: GroupProgress) -> str:
    """Describe the group in one line."""
    present = [member for member in members if member.state != "left"]
    sessions = [member.live_session for member in present if member.live_session is not None]
    generation = (
        f"generation {sessions[0].generation_id}"
        if len(sessions) == len(present) and sessions
        else "rebalancing"
    )
    return (
        f"{progress.committed_records:>7,} of {counted(progress.total, 'record')} ({progress.committed_records / progress.total:4.0%})"
        f"  {progress.meter.rate:>7,.0f} records/s  {counted(len(present), 'member')}, {generation}"
    )


class QueryProgressView:
    """Shows each query's batches and records, and the event time up to which its results are complete (watermark)."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._printed: set[str] = set()

    def render(self) -> Table:
        """Return a table with a row for each query."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("query", min_width=9)
        for name, width in (("batches", 7), ("records", 8)):
            table.add_column(name, min_width=width, justify="right")
        table.add_column("", min_width=24)
        table.add_column("complete until", min_width=16)
        total = self._queries.total
        for each in self._queries.progress:
            bar = Bar(total, 0, min(each.records, total), width=24, color="green")
            table.add_row(each.name, str(each.batches), f"{each.records:,}", bar, _until(each) or "-")
        return table

    def lines(self) -> Iterator[str]:
        """Yield a line for each query whose progress has changed."""
        for each in self._queries.progress:
            until = f", complete until {_until(each)}" if _until(each) else ""
            batches, records = counted(each.batches, "batch", "batches"), counted(each.records, "record")
            line = f"query {each.name:<8} {records:>17} in {batches}{until}"
            if each.batches and line not in self._printed:
                self._printed.add(line)
                yield line


def _until(progress: QueryProgress) -> str:
    return progress.watermark[:16].replace("T", " ")
