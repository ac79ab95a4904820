"""Public names: sorted, importable and documented; and which modules an import of the package must not load."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import asyncgroup
from asyncgroup import errors

ROOT = Path(asyncgroup.__file__).parent
NEEDS = {"asyncgroup.spark": "pyspark", "asyncgroup.telemetry.otel": "opentelemetry"}
"""Optional dependencies of subpackages."""


def modules() -> list[str]:
    """Return every module of the package except `__main__`, which runs when imported."""
    found = pkgutil.walk_packages([str(ROOT)], "asyncgroup.")
    return ["asyncgroup", *(info.name for info in found if not info.name.endswith("__main__"))]


def rooms() -> list[str]:
    """Return the package and the packages and modules directly below it."""
    return sorted({".".join(name.split(".")[:2]) for name in modules()})


def modules_of(room: str) -> list[str]:
    return [
        name for name in modules() if name == room or (name.startswith(f"{room}.") and room != "asyncgroup")
    ]


def load(name: str) -> types.ModuleType:
    for package, needed in NEEDS.items():
        if name.startswith(package):
            pytest.importorskip(needed)
    return importlib.import_module(name)


def order(name: str) -> tuple[int, str]:
    """Sort key: CONSTANTS, then Classes, then functions, as ruff sorts `__all__`."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_every_module_is_in_one_room() -> None:
    assert sorted(name for room in rooms() for name in modules_of(room)) == sorted(modules())


@pytest.mark.parametrize("room", rooms())
def test_exported_names_are_there_and_in_order(room: str) -> None:
    for name in modules_of(room):
        module = load(name)
        exported = getattr(module, "__all__", [])
        assert list(exported) == sorted(set(exported), key=order), name
        for each in exported:
            assert hasattr(module, each), (name, each)


@pytest.mark.parametrize("room", rooms())
def test_every_module_has_a_docstring(room: str) -> None:
    for name in modules_of(room):
        module = load(name)
        if not (getattr(module, "__all__", None) or name == "asyncgroup.wire"):
            continue  # an `__init__.py` without exports
        assert module.__doc__, f"{name} needs a docstring"


@pytest.mark.parametrize("room", rooms())
def test_every_exported_class_and_function_is_explained(room: str) -> None:
    missing = []
    for name in modules_of(room):
        module = load(name)
        for each in getattr(module, "__all__", ()):
            thing = getattr(module, each)
            if inspect.isclass(thing):
                explained = bool(thing.__dict__.get("__doc__"))
            elif inspect.isfunction(thing):
                explained = bool(thing.__doc__)
            else:
                continue
            if (thing.__module__, thing.__name__) == (name, each) and not explained:
                missing.append(f"{name}.{each}")
    assert missing == []


@pytest.mark.parametrize("name", asyncgroup.__all__)
def test_every_public_method_of_the_public_face_is_explained(name: str) -> None:
    thing = getattr(asyncgroup, name)
    if not inspect.isclass(thing):
        return
    missing = []
    for cls in thing.__mro__:
        if not cls.__module__.startswith("asyncgroup."):
            continue
        for attribute, value in vars(cls).items():
            if attribute.startswith("_"):
                continue
            if isinstance(value, property | types.FunctionType | classmethod | staticmethod):
                described = value.fget if isinstance(value, property) else value
                if not inspect.getdoc(described):
                    missing.append(f"{cls.__name__}.{attribute}")
    assert missing == []


PACKAGES = ("consumer", "offsets", "group")


def exported_values(package: str) -> list[tuple[str, str]]:
    """Return (module, name) of the constants, tables and type aliases that a package exports."""
    found = []
    for name in modules_of(f"asyncgroup.{package}"):
        module = importlib.import_module(name)
        if hasattr(module, "__path__"):
            continue
        tree = ast.parse(inspect.getsource(module))
        assigned = {
            target.id
            for node in tree.body
            for target in (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            if isinstance(target, ast.Name)
        }
        found += [(name, each) for each in getattr(module, "__all__", ()) if each in assigned]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_value_is_explained_below_it(package: str) -> None:
    values = exported_values(package)
    assert values
    for module, name in values:
        expect_docstring_below(module, name)


def expect_docstring_below(module: str, name: str) -> None:
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for node, below in itertools.pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(below, ast.Expr), f"{module}.{name} has no docstring below it"
            assert isinstance(below.value, ast.Constant)
            assert isinstance(below.value.value, str)
            return
    pytest.fail(f"{name} is not assigned in {module}")


@functools.cache
def error_names() -> set[str]:
    """Return the names of all exceptions that the package defines."""
    return {
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        and {"Error", "Exception"}
        & {part for base in node.bases for part in re.findall("[A-Z][a-z]+", ast.unparse(base))}
    } | set(errors.__all__)


def public_docstrings(package: str) -> list[tuple[str, str]]:
    """Return (place, docstring) of a package's exported names and their public methods."""
    module = load(package)
    found = []
    for name in module.__all__:
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        found.append((name, thing.__doc__ or ""))
        classes = thing.__mro__ if inspect.isclass(thing) else ()
        members = {
            attribute: value
            for cls in reversed(classes)
            if cls.__module__.startswith("asyncgroup.")
            for attribute, value in vars(cls).items()
            if attribute == "__init__" or not attribute.startswith("_")
        }
        for attribute, value in members.items():
            described = value.fget if isinstance(value, property) else value
            found.append((f"{name}.{attribute}", inspect.getdoc(described) or ""))
    return found


@pytest.mark.parametrize(
    "package",
    ["asyncgroup", "asyncgroup.broker", "asyncgroup.pulsar_broker", "asyncgroup.spark", "asyncgroup.testing"],
)
def test_errors_that_docstrings_say_are_raised_can_be_imported(package: str) -> None:
    """From `asyncgroup` or the package with the docstring; errors of `asyncgroup.testing` also from the brokers that it runs."""
    brokers = {"asyncgroup.broker", "asyncgroup.pulsar_broker"} if package == "asyncgroup.testing" else set()
    faces = {"asyncgroup", package} | brokers
    known, here = error_names(), {name for face in faces for name in load(face).__all__}
    missing = {
        (place, word)
        for place, text in public_docstrings(package)
        for raised in re.findall(r"\b[Rr]aises?\b(.*?)(?:\.\s|\.$|\Z)", text, re.DOTALL)
        for word in re.findall(r"\b[A-Z]\w+", raised)
        if word in known and word not in here
    }
    assert missing == set()


def test_every_error_of_the_tree_can_be_imported_from_the_package() -> None:
    assert set(errors.__all__) <= set(asyncgroup.__all__)
    from asyncgroup import UsageError

    assert UsageError is errors.UsageError


def test_the_public_face_is_small() -> None:
    assert 20 <= len(set(asyncgroup.__all__) - set(errors.__all__)) <= 50


def test_importing_the_package_is_light() -> None:
    """The import loads neither Spark, Arrow, rich and hypothesis nor the embedded broker and testing tools."""
    heavy = ("pyspark", "pyarrow", "pandas", "rich", "hypothesis", "asyncgroup.broker", "asyncgroup.testing")
    code = f"import asyncgroup, sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT.parent
    )
    assert done.stdout.strip() == "[]"


def test_names_are_imported_when_they_are_first_used() -> None:
    """`import asyncgroup` must be cheap, because every pytest run of the environment imports it for the plugin."""
    code = (
        "import asyncgroup, sys; own = lambda: {n for n in sys.modules if n.startswith('asyncgroup')}; "
        "assert own() <= {'asyncgroup', 'asyncgroup.lazy_names'}, own(); "
        "assert {*asyncgroup.__all__, 'errors'} <= {*dir(asyncgroup)}; "
        "assert asyncgroup.errors.UsageError.__name__ == 'UsageError'; "
        "assert 'asyncgroup.group' not in own(); "
        "from asyncgroup import *; assert Claim.__module__ == 'asyncgroup.group.sessions.claim'; "
        "assert not hasattr(asyncgroup, 'Klaim')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT.parent
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "room", ["", ".cluster", ".consumer", ".group", ".offsets", ".producer", ".spark", ".testing"]
)
def test_type_checkers_see_the_same_names_at_the_same_places(room: str) -> None:
    """The imports for type checkers, `_NAMES` and `__all__` have the same names."""
    package = f"asyncgroup{room}"
    module = importlib.import_module(package)
    seen = {}
    (block,) = (
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncgroup."):
            inside = (node.module or "").startswith(f"{package}.")
            home = (node.module or "").removeprefix(f"{package}." if inside else "asyncgroup")
            seen[home] = {alias.name for alias in node.names}
    assert seen == {home: set(names) for home, names in module._NAMES.items()}
    assert sorted(name for names in module._NAMES.values() for name in names) == sorted(module.__all__)


def test_importing_the_package_gives_no_warnings() -> None:
    code = "import asyncgroup"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT.parent)
    assert (done.returncode, done.stderr) == (0, "")
