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

import pytest

import asyncgroup

ROOT: Final = Path(asyncgroup.__file__).parent

STANDING: Final = {
    # annotations: a hook gets the Session and committed offsets
    ("asyncgroup.hooks", "asyncgroup.group"),
    ("asyncgroup.hooks", "asyncgroup.offsets"),
}
"""The imports (importer, imported) that still close a circle; without them there is none. Remove one when it is gone."""


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


def circle_without(left_out: set[tuple[str, str]]) -> list[str]:
    """Return a circle of the imports that are not left out; empty if there is none."""
    graph = {
        name: {to for to in found if (name, to) not in left_out} for name, found in import_graph().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # each imports the next
    return []


def test_no_circle() -> None:
    assert circle_without(STANDING) == []


@pytest.mark.parametrize("standing", sorted(STANDING), ids=" → ".join)
def test_a_standing_import_still_closes_a_circle(standing: tuple[str, str]) -> None:
    importer, imported = standing
    assert imported in import_graph()[importer], "this import is gone: remove it from the list"
    assert circle_without(STANDING - {standing}), "this import closes no circle: remove it from the list"


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
