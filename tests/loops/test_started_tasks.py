"""Tasks of the package are started by `lifecycle.start_task`: never eagerly, with any task factory of the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import asyncgroup

PACKAGE: Final = Path(asyncgroup.__file__).parent
PROGRAMS: Final = {PACKAGE / name for name in ("cli", "demo", "spark", "testing")}
"""Their event loops are not those of a user's program: commands, and processes of Spark and of tests."""


def test_no_task_is_started_in_another_way() -> None:
    sources = [path for path in PACKAGE.rglob("*.py") if PROGRAMS.isdisjoint(path.parents)]
    assert len(sources) > 100
    starts = re.compile(r"\b(create_task|ensure_future)\(")
    found = [str(path.relative_to(PACKAGE)) for path in sources if starts.search(path.read_text("utf-8"))]
    assert found == ["lifecycle.py"]
