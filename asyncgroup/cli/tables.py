"""Rows as a table that fits the terminal, as JSON, or as names only. Pure: text out, nothing is printed.

A column has one key in JSON and, unless it says otherwise, the same name in capitals in the table, as Kafka's tools have it. An absent
value is null in JSON and `-` in the table.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from asyncgroup.cli.printing import json_object
from asyncgroup.escaping import printable

__all__ = [
    "ABSENT",
    "Column",
    "Row",
    "cell_text",
    "display_width",
    "json_line",
    "name_of",
    "shortened",
    "shown_time",
    "shown_timestamp",
    "table_lines",
]

Row: TypeAlias = Mapping[str, Any]
"""The values of a row, by the keys of its columns."""

ABSENT: Final = "-"
"""Shown for a value that is not known or does not exist, as by Kafka's tools."""
GAP: Final = 2
"""Spaces between two columns."""
MIN_WIDTH: Final = 8
"""Columns of a terminal to which a value is shortened at most."""
ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    key: str
    """Its key in JSON, which never changes."""
    title: str = ""
    """Its heading; by default the key in capitals with dashes."""
    is_number: bool = False
    """Whether its values are aligned to the right."""
    can_shrink: bool = False
    """Whether its values may be shortened if the terminal is too narrow."""
    is_wide: bool = False
    """Whether the table has it with `--wide` only; JSON always has it."""
    is_name: bool = False
    """Whether it is a part of the row's name, which is all that `--quiet` prints."""
    text: Callable[[Any], object] | None = None
    """Converts the value for the table; JSON has the value itself."""

    @property
    def heading(self) -> str:
        """The heading in the table."""
        return self.title or self.key.upper().replace("_", "-")


# --- text -------------------------------------------------------------------------------------------------------------


def display_width(text: str) -> int:
    """Return the terminal columns that printable text takes: 2 for East Asian wide characters, 0 for combining ones."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shortened(text: str, width: int) -> str:
    """Return the beginning of `text` that takes at most `width` terminal columns, with an ellipsis if characters are missing."""
    if display_width(text) <= width:
        return text
    kept, left = "", width - 1
    for character in text:
        left -= _character_width(character)
        if left < 0:
            break
        kept += character
    return kept + ELLIPSIS


def cell_text(value: object) -> str:
    """Return a value as the table shows it, on one line and without control characters."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, Mapping):
        return ",".join(f"{cell_text(key)}={cell_text(each)}" for key, each in value.items()) or ABSENT
    if isinstance(value, list | tuple):
        return ",".join(map(cell_text, value)) or ABSENT
    # an empty cell would move the columns after it, for a reader such as awk
    return printable(str(value)) or '""'


# --- tables -----------------------------------------------------------------------------------------------------------


def table_lines(
    columns: Sequence[Column], rows: Sequence[Row], *, width: int | None = None, wide: bool = False
) -> list[str]:
    """Return the heading and a line for each row, with at most `width` terminal columns if the columns that can shrink allow it.

    Without `width`, for a pipe or a file, nothing is shortened. `wide` adds the columns that only a wide table has.
    """
    shown = [column for column in columns if wide or not column.is_wide]
    headings = [column.heading for column in shown]
    cells = [[_cell(column, row) for column in shown] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(headings, *cells, strict=True)]
    if width is not None:
        widths = _fitted(shown, widths, width)
    return [_line(shown, line, widths) for line in [headings, *cells]]


def _cell(column: Column, row: Row) -> str:
    value = row[column.key]
    return cell_text(value if column.text is None else column.text(value))


def _fitted(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return smaller widths: the widest columns that can shrink are cut to one width, so that short values stay complete."""
    fitted = list(widths)
    excess = sum(fitted) + GAP * (len(fitted) - 1) - width
    # the floor of each column that can shrink
    least = {
        index: min(fitted[index], max(MIN_WIDTH, display_width(column.heading)))
        for index, column in enumerate(columns)
        if column.can_shrink
    }
    while excess > 0:
        open_ones = [index for index in least if fitted[index] > least[index]]
        if not open_ones:
            break
        widest = max(fitted[index] for index in open_ones)
        group = [index for index in open_ones if fitted[index] == widest]
        # down to the next narrower column or to a floor, but not below what is needed
        others = [fitted[index] for index in open_ones if fitted[index] < widest]
        floor = max([*others, *(least[index] for index in group)])
        step = min(widest - floor, -(-excess // len(group)))
        for index in group:
            taken = min(step, excess)
            fitted[index] -= taken
            excess -= taken
    return fitted


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        text = shortened(cell, width)
        blanks = " " * (width - display_width(text))
        parts.append(blanks + text if column.is_number else text + blanks)
    return (" " * GAP).join(parts).rstrip()


# --- for programs -----------------------------------------------------------------------------------------------------


def json_line(columns: Sequence[Column], row: Row) -> str:
    """Return a row as a JSON object on one line, with the keys of all columns in their order."""
    return json_object({column.key: row[column.key] for column in columns})


def name_of(columns: Sequence[Column], row: Row) -> str:
    """Return the name of a row, on one line; its parts are separated by tabs."""
    return "\t".join(cell_text(row[column.key]) for column in columns if column.is_name)


# --- times ------------------------------------------------------------------------------------------------------------


def shown_time(timestamp: int) -> str:
    """Return a timestamp in ms as UTC, such as `2026-11-25 22:48:01.123Z`; `-` for none, and beyond the year 9999."""
    try:
        if timestamp < 0:
            return ABSENT
        time = datetime.fromtimestamp(timestamp // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ABSENT
    return f"{time:%Y-%m-%d %H:%M:%S}.{timestamp % 1000:03d}Z"


def shown_timestamp(milliseconds: int | None) -> str | None:
    """Return a timestamp in ms as UTC, such as `2026-11-25T22:48:01.123Z`; None for none."""
    shown = None if milliseconds is None else shown_time(milliseconds).replace(" ", "T")
    return None if shown == ABSENT else shown
