"""The table of `dlq list` on terminals of several widths: the reason is always in it."""

from __future__ import annotations

import re

import pytest

from asyncgroup.cli import dead_letter_table
from asyncgroup.cli.dead_letter_rows import DeadLetterRow
from asyncgroup.cli.dead_letter_table import print_table

BORN = 1_700_000_000_004
ROWS = [
    DeadLetterRow(
        0, 0, BORN, "orders", 1, 104, "billing", 6, "ValueError: unknown currency 'XYZ'", b"order-4"
    ),
    DeadLetterRow(11, 123, BORN, "orders", 2, 31, "billing", 1, "TimeoutError", b"\xff\n"),
    DeadLetterRow(1, 2, -1, None, None, None, None, None, None, None),
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(dead_letter_table, "is_terminal", lambda: True)
    return monkeypatch


def shown(capsys: pytest.CaptureFixture[str], rows: list[DeadLetterRow] = ROWS) -> list[str]:
    print_table(rows, len(rows))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line.strip("─")]


def test_at_80_columns_the_reason_has_its_own_line(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "80")
    head, *lines = shown(capsys)
    assert head.split() == ["record", "reason"]
    # how wide the first column is differs between releases of Rich
    assert [re.sub(" {2,}", "  ", line) for line in lines] == [
        "0@0  ValueError: unknown currency 'XYZ'",
        "orders-1@104, group billing, 6 deliveries, key order-4, 2023-11-14",
        "22:13:20.004Z",
        "11@123  TimeoutError",
        r"orders-2@31, group billing, 1 delivery, key \xff\n, 2023-11-14",
        "22:13:20.004Z",
        "1@2  -",
    ]


@pytest.mark.parametrize("columns", [30, 50, 80, 90, 100, 110, 120, 200])
def test_reasons_and_places_are_complete_at_each_width(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    terminal.setenv("COLUMNS", str(columns))
    text = " ".join(" ".join(shown(capsys)).split())
    assert "…" not in text
    for row in ROWS:
        assert row.place in text
        assert all(word in text for word in (row.reason or "-").split())


def test_columns_where_there_is_room(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = ["record", "time", "origin", "group", "deliveries", "key", "reason"]
    terminal.setenv("COLUMNS", "120")
    assert shown(capsys)[0].split() == head
    terminal.setenv("COLUMNS", "100")
    assert shown(capsys)[0].split() == ["record", "reason"]
    assert shown(capsys, ROWS[1:])[0].split() == head, "the reasons are short"
