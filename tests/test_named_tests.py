"""Tests that docstrings, comments and pages send a reader to exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = ROOT / "tests"

TEXTS: Final = sorted(
    path
    for pattern in ("README.md", "asyncgroup/**/*.py", "asyncgroup/guide/*.md", "tests/*.md", "tests/**/*.py")
    for path in ROOT.glob(pattern)
)

NAMED: Final = re.compile(r"`((?:[a-z_]+/)*test_\w*[a-z0-9])(?:\.py)?`")
"""A module of tests, with or without its directory, or a test."""

EXAMPLES: Final = {"tests/a/test_b"}
"""What a page shows in place of a path."""


def named_tests() -> dict[str, set[str]]:
    """Return the tests that texts name, each with the files that name it."""
    named: dict[str, set[str]] = {}
    for path in TEXTS:
        for test in NAMED.findall(path.read_text(encoding="utf-8")):
            named.setdefault(test, set()).add(path.relative_to(ROOT).as_posix())
    return named


def existing_tests() -> set[str]:
    """Return all ways to name a test: a module's path from each of its directories on, and the names of functions."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found |= {"/".join(parts[index:]) for index in range(len(parts))}
        found |= set(
            re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        )
    return found


def test_each_named_test_exists() -> None:
    named, existing = named_tests(), existing_tests() | EXAMPLES
    assert len(named) > 150
    assert {test: sorted(files) for test, files in named.items() if test not in existing} == {}
