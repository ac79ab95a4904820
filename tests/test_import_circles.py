"""No circle between two files of the package, imports for annotations and inside functions included.

A reader can then understand every file from the files that it imports. The import contracts in `pyproject.toml` leave
imports for annotations out.
"""

from __future__ import annotations

import ast
import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import asyncgroup

ROOT: Final = Path(asyncgroup.__file__).parent


def module_name(path: Path) -> str:
    parts = [ROOT.name, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES: Final = {module_name(path): path for path in ROOT.rglob("*.py")}


def imports_of(source: str) -> set[str]:
    """Return the package's modules that a source imports by name; `from a import b` is a.b if that is a module, else a."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "the package has absolute imports only"
            assert node.module
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in SOURCES else node.module for name in names}
    return found & SOURCES.keys()


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return what each module of the package imports."""
    return {name: imports_of(path.read_text(encoding="utf-8")) - {name} for name, path in SOURCES.items()}


def circle() -> list[str]:
    """Return a circle of imports; empty if there is none."""
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # each imports the next
    return []


def test_no_circle() -> None:
    assert circle() == []


def test_every_kind_of_import_is_seen() -> None:
    source = """
import asyncgroup.config
from asyncgroup import errors
from asyncgroup.group import Session
from asyncio import tasks
if TYPE_CHECKING:
    from asyncgroup.model import Record
def late():
    from asyncgroup.hooks import Hook
"""
    names = ("config", "errors", "group", "hooks", "model")
    assert imports_of(source) == {f"asyncgroup.{name}" for name in names}
