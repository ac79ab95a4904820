"""The table of `dlq list`, and the number of its records by reason. It needs rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncgroup.cli.dead_letter_rows import MAX_REASON, DeadLetterFields
from asyncgroup.cli.printing import is_terminal
from asyncgroup.cli.tables import ABSENT
from asyncgroup.counting import counted
from asyncgroup.escaping import printable

__all__ = ["print_summary", "print_table"]

MAX_REASONS: Final = 20
"""Reasons in the summary: the most frequent ones."""

COLUMNS: Final = ("record", "time", "origin", "group", "deliveries", "key", "reason")
COLUMN_GAP: Final = 3
"""Characters between two columns."""
MIN_REASON: Final = 30
"""Characters of a terminal's line that are left for a reason in its own column; with less it has its own line."""


def print_table(rows: Sequence[DeadLetterFields], total: int) -> None:
    """Print the rows; to a pipe or a file without line breaks in a row. `total` is the number of all dead letters.

    If the terminal is too narrow for all columns, the reason of each record is above its other fields.
    """
    if not rows:
        return
    console = _console()
    cells = [row.cells() for row in rows]
    *others, reason = (max(map(cell_len, column)) for column in zip(COLUMNS, *cells, strict=True))
    left = console.width - sum(others) - COLUMN_GAP * len(COLUMNS)
    console.print(_wide_table(cells) if left >= min(reason, MIN_REASON) else _narrow_table(rows))
    if len(rows) < total:
        console.print(f"{counted(total - len(rows), 'more is', 'more are')} not listed", markup=False)


def _wide_table(cells: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS[:-1]:
        table.add_column(name, no_wrap=True, justify="right" if name == "deliveries" else "left")
    table.add_column(COLUMNS[-1], overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _narrow_table(rows: Sequence[DeadLetterFields]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(COLUMNS[0], no_wrap=True, min_width=max(len(row.place) for row in rows))
    table.add_column(COLUMNS[-1], overflow="fold")
    for row in rows:
        lines = (printable(row.reason or ABSENT, MAX_REASON), row.details())
        table.add_row(Text(row.place), Text("\n".join(filter(None, lines))))
    return table


def print_summary(topic: str, reasons: Mapping[str | None, int]) -> None:
    """Print the number of records by reason, the most frequent one first."""
    console = _console()
    total = sum(reasons.values())
    console.print(f"{topic}: {counted(total, 'record')}", markup=False)
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0] or ""))
    for reason, count in ordered[:MAX_REASONS]:
        shown = ABSENT if reason is None else printable(reason, MAX_REASON)
        console.print(f"{count:>8,}  {shown}", markup=False)
    if more := ordered[MAX_REASONS:]:
        console.print(
            f"{sum(count for _, count in more):>8,}  {counted(len(more), 'other reason')}", markup=False
        )


def _console() -> Console:
    return Console(highlight=False, soft_wrap=not is_terminal(), width=None if is_terminal() else 10_000)
