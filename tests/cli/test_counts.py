"""Numbers in the output: `1 record`, not `1 records`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncgroup.cli
from asyncgroup.cli.dead_letter_rows import DeadLetterRow, full_text
from asyncgroup.cli.dead_letter_table import print_summary, print_table
from asyncgroup.counting import counted
from asyncgroup.model import Record

SOURCES = sorted(Path(asyncgroup.cli.__file__).parent.rglob("*.py"))

PLURAL = re.compile(
    r"^ (?:other |more )?(?:batches|bytes|claims|commits|flights|handlers|headers|keys|letters|members|messages|nodes|offsets"
    r"|partitions|reasons|records|rows|seconds|topics)\b(?!/)"
)
"""The begin of a text that follows a number; not of a rate such as `records/s`."""

CONSTANTS = {"PARTITIONS"}
"""Numbers that are always more than 1."""


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1_200, "1,200 records")]
)
def test_counted(count: int, expected: str) -> None:
    assert counted(count, "record") == expected
    assert counted(count, "batch", "batches") == expected.replace("record", "batch").replace("chs", "ches")


def fixed_plurals(path: Path) -> Iterator[str]:
    """Yield the places of f-strings with a number that is always followed by a plural."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            for number, text in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(number, ast.FormattedValue)
                    and ast.unparse(number.value) not in CONSTANTS
                    and isinstance(text, ast.Constant)
                    and PLURAL.match(str(text.value))
                ):
                    yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


def test_no_command_prints_a_number_with_a_fixed_plural() -> None:
    assert len(SOURCES) > 30
    assert [place for path in SOURCES for place in fixed_plurals(path)] == []


def test_one_dead_letter(capsys: pytest.CaptureFixture[str]) -> None:
    record = Record("dlq", 0, 7, value=b"x")
    rows = [DeadLetterRow.of(record)]
    print_table(rows, 2)
    print_summary("dlq", {f"reason {number}": 1 for number in range(21)})
    print_summary("dlq", {"reason": 1})
    out = capsys.readouterr().out
    assert "1 more is not listed\n" in out
    assert "       1  1 other reason\n" in out
    assert "dlq: 1 record\n" in out
    assert "value (1 byte)" in full_text(record, record.topic, rows[0])
