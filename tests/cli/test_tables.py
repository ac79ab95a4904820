"""Tables: as wide as the terminal if possible, nothing lost in JSON, no control characters, names only with `--quiet`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.cli.tables import (
    GAP,
    MIN_WIDTH,
    Column,
    cell_text,
    display_width,
    json_line,
    name_of,
    table_lines,
)

COLUMNS = (
    Column("topic", is_name=True, can_shrink=True),
    Column("partition", is_number=True, is_name=True),
    Column("client_id", can_shrink=True),
    Column("members", "#MEMBERS", is_number=True, is_wide=True),
)

TEXTS = st.text(max_size=40) | st.text("字é\u0301\x1b\n\u202e|a", max_size=12)
VALUES = st.none() | st.booleans() | st.integers() | TEXTS | st.lists(TEXTS | st.integers(), max_size=4)
ROWS = st.lists(st.fixed_dictionaries({column.key: VALUES for column in COLUMNS}), max_size=6)


def row(topic: Any = "orders", partition: Any = 0, client_id: Any = "me", members: Any = 1) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "client_id": client_id, "members": members}


def test_a_table_has_capitals_numbers_to_the_right_and_a_dash_for_what_is_absent() -> None:
    rows = [row(), row("a-long-topic", 123, None)]
    assert table_lines(COLUMNS, rows) == [
        "TOPIC         PARTITION  CLIENT-ID",
        "orders                0  me",
        "a-long-topic        123  -",
    ]
    assert table_lines(COLUMNS, rows, wide=True)[0] == "TOPIC         PARTITION  CLIENT-ID  #MEMBERS"


def test_the_longest_columns_are_shortened_first() -> None:
    rows = [row("t" * 20, 0, "c" * 30), row("short", 1, "me")]
    assert table_lines(COLUMNS, rows, width=40) == [
        "TOPIC          PARTITION  CLIENT-ID",
        "tttttttttttt…          0  ccccccccccccc…",
        "short                  1  me",
    ]
    for width in range(40, 65):
        lines = table_lines(COLUMNS, rows, width=width)
        assert max(map(len, lines)) == min(width, 20 + GAP + 9 + GAP + 30)


def test_a_tiny_terminal_gets_a_table_that_is_wider_than_it() -> None:
    lines = table_lines(COLUMNS, [row("t" * 20, 0, "c" * 30)], width=5)
    assert lines[1] == "ttttttt…          0  cccccccc…"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", '""'),
        (True, "yes"),
        (False, "no"),
        (1_000_000, "1000000"),
        (2.25, "2.2"),
        ([1, 2, 3], "1,2,3"),
        ((), "-"),
        ({"a": "b", "c": None}, "a=b,c=-"),
        ({}, "-"),
        ("a\x1b[2Jb\n\u202e", "a\\x1b[2Jb\\n\\u202e"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell_text(value) == text


def test_wide_and_combining_characters_are_counted_as_a_terminal_does() -> None:
    assert [display_width(text) for text in ("abc", "é", "e\u0301", "日本", "")] == [3, 1, 1, 4, 0]
    lines = table_lines(COLUMNS, [row("日本" * 10, 0), row("e\u0301" * 10, 1)], width=30)
    assert lines[1:] == ["日本日…           0  me", "e\u0301" * 7 + "…          1  me"]
    assert [display_width(line) for line in lines] == [30, 23, 23]


@settings(max_examples=25)
@given(ROWS, st.none() | st.integers(0, 200), st.booleans())
def test_no_line_is_wider_than_the_terminal_if_that_is_possible(
    rows: list[dict[str, Any]], width: int | None, wide: bool
) -> None:
    lines = table_lines(COLUMNS, rows, width=width, wide=wide)
    assert len(lines) == 1 + len(rows)
    assert all(line.isprintable() for line in lines)
    shown = [column for column in COLUMNS if wide or not column.is_wide]
    if width is not None:
        least = GAP * (len(shown) - 1)
        for column in shown:
            full = max(
                display_width(text) for text in [column.heading, *(cell_text(r[column.key]) for r in rows)]
            )
            least += min(full, max(MIN_WIDTH, len(column.heading))) if column.can_shrink else full
        assert max(map(display_width, lines)) <= max(width, least)
    else:
        for line, each in zip(lines[1:], rows, strict=True):
            assert all(cell_text(each[column.key]).strip() in line for column in shown)


@settings(max_examples=25)
@given(ROWS)
def test_json_loses_nothing(rows: list[dict[str, Any]]) -> None:
    for each in rows:
        line = json_line(COLUMNS, each)
        assert line.isprintable()
        assert json.loads(line) == each
        assert list(json.loads(line)) == [column.key for column in COLUMNS]


def test_json_is_one_line_that_a_terminal_can_show() -> None:
    name = "a\x1b[2J\x9b2J\u2028\x85\u202e\x00é😀"
    line = json_line(COLUMNS, row(name, 3))
    assert line.isprintable()
    assert line.splitlines() == [line]
    assert "é😀" in line
    assert json.loads(line) == row(name, 3)


def test_a_name_is_a_line() -> None:
    assert name_of(COLUMNS, row("a\nb", 3)) == "a\\nb\t3"
