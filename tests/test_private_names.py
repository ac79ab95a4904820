"""Private names of other files: a public object's `_inner` is the one door between the files of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncgroup

ROOT: Final = Path(asyncgroup.__file__).parent

DOOR: Final = "_inner"
"""See the guide on contributing."""

TUPLES: Final = {"_asdict", "_fields", "_make", "_replace"}
"""Public methods of named tuples."""

FOREIGN: Final = {
    "_SubParsersAction", "_accumulatorServer", "_actions", "_active_spark_context", "_choices_actions", "_current_frames", "_exit",
    "_expand_help", "_gateway", "_get_formatter", "_getframe", "_jsc", "_jsparkSession", "_jvm",
}  # fmt: skip
"""Names of the standard library, PySpark and Py4J."""

OURS: Final[dict[str, set[str]]] = {
    "group": {"_open"},
    "workqueue": {
        "_has_handler", "_has_slot", "_is_retry", "_keeps_key", "_outcomes", "_reader", "_work",
    },
}  # fmt: skip
"""By room, the names that are still read in other files. Nothing is added here."""


def own_names(tree: ast.Module) -> set[str]:
    """Return what a file itself defines: classes, functions, and attributes that it sets on `self` or `cls`."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                found.add(node.attr)
            case ast.Name(ctx=ast.Store()):  # in the body of a class
                found.add(node.id)
    return found


def others_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each private attribute of another file's objects that a source uses."""
    tree = ast.parse(source)
    own = own_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                if name not in own | TUPLES | FOREIGN | {DOOR}:
                    yield node.lineno, name


def test_the_one_door_between_files_is_inner() -> None:
    used: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT)
        for line, name in others_names(path.read_text(encoding="utf-8")):
            assert name in OURS.get(place.parts[0], set()), f"{place}:{line}: {name}"
            used.setdefault(place.parts[0], set()).add(name)
    assert used == OURS, "a name that no file needs any more is removed from the table"


def test_what_counts_as_the_name_of_another_file() -> None:
    source = (
        "class A:\n"
        "    def f(self, other):\n"
        "        self._mine = other._mine + other._theirs + other._inner.x + other._replace()\n"
        "        super()._base()\n"
    )
    assert list(others_names(source)) == [(3, "_theirs")]
