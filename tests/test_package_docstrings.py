"""The docstring of a package says what each of its files is for: a reader finds the place of a thing without opening all of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

import asyncgroup

ROOT: Final = Path(asyncgroup.__file__).parent

BY_THEIR_NAMES: Final = {"broker/handlers", "pyinstaller", "wire/messages"}
"""Packages whose files are named after what they handle: an API, or the module of a hook."""

EVERYWHERE: Final = {"__init__", "__main__", "foreign_names"}
"""Modules that have the same purpose in every package that has them."""

PACKAGES: Final = sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("*/__init__.py"))


def parts_of(package: Path) -> set[str]:
    """Return the names of a package's modules and packages."""
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    return packages | {path.stem for path in package.glob("*.py")} - EVERYWHERE


def unexplained(parts: set[str], docstring: str) -> list[str]:
    """Return the parts that the docstring does not name: as `part`, `part.py`, `part/`, or with a name of it behind a dot."""
    named = {name for path in re.findall(r"`([\w./]+)`", docstring) for name in re.split(r"\W", path)}
    return sorted(parts - named)


def test_all_packages_are_found() -> None:
    assert len(PACKAGES) > 40
    assert set(PACKAGES) > BY_THEIR_NAMES


@pytest.mark.parametrize(
    ("docstring", "missing"),
    [
        ("`one` and `two.py`", []),
        ("`one/` has `two.A`", []),
        ("one, and the way of `two`", ["one"]),
        ("`one_and_two`", ["one", "two"]),
    ],
)
def test_a_part_is_named_as_code(docstring: str, missing: list[str]) -> None:
    assert unexplained({"one", "two"}, docstring) == missing


@pytest.mark.parametrize("name", sorted(set(PACKAGES) - BY_THEIR_NAMES))
def test_each_file_of_a_package_is_explained(name: str) -> None:
    package = ROOT / name
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert unexplained(parts_of(package), docstring) == [], f"say in {name}/__init__.py what they are for"
