"""The progress of Spark's queries on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from rich import box
from rich.bar import Bar
from rich.table import Table

if TYPE_CHECKING:
    from asyncgroup.spark.examples.flights.pipeline import QueryProgress

__all__ = ["QueryProgressView"]


class HasProgress(Protocol):
    """Running queries: their progress, and the number of records that each has to read."""

    @property
    def progress(self) -> Sequence[QueryProgress]: ...

    @property
    def total(self) -> int: ...


class QueryProgressView:
    """Shows each query's batches and records, and the event time up to which its results are complete (watermark)."""

    def __init__(self, queries: HasProgress) -> None:
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
            batches = f"{each.batches} {'batch' if each.batches == 1 else 'batches'}"
            line = f"query {each.name:<8} {each.records:>9,} records in {batches}{until}"
            if each.batches and line not in self._printed:
                self._printed.add(line)
                yield line


def _until(progress: QueryProgress) -> str:
    return progress.watermark[:16].replace("T", " ")
