"""Programs that PyInstaller freezes: they contain the modules that it finds by following imports, and those of the hook."""

from __future__ import annotations

import importlib
import json
import pkgutil
import runpy
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from modulefinder import ModuleFinder
from pathlib import Path

import pytest

import asyncgroup.broker.handlers
from asyncgroup.broker.handlers import registry
from asyncgroup.broker.handlers.registry import HandlersMissing, check_all_registered
from asyncgroup.errors import AsyncGroupError
from asyncgroup.wire.apis import APIS
from tests.distribution.built import ROOT

PROGRAM = """
import asyncio
from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster

async def main():
    async with EmbeddedCluster(topics={"orders": 2}) as cluster:
        servers = cluster.bootstrap_servers
        async with Producer(servers) as producer:
            await producer.send("orders", b"one")
        async with ConsumerGroup(servers, "readers", ConsumerConfig(auto_offset_reset="earliest")) as group:
            print((await anext(group.records("orders"))).value)

asyncio.run(main())
"""

FREEZE = """
import json, pkgutil, sys

frozen = set(json.loads(sys.stdin.read()))

class OnlyFrozen:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "asyncgroup" and name not in frozen:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyFrozen())
listed = pkgutil.iter_modules
pkgutil.iter_modules = lambda *where: (each for each in listed(*where) if each.name in frozen)
"""
"""Makes a process have the modules of a frozen program, and list no others; their names come by standard input."""


def the_hook() -> Path:
    """Return the hook, which is found as PyInstaller finds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (directory,) = pkgutil.resolve_name(project["entry-points"]["pyinstaller40"]["hook-dirs"])()
    (hook,) = Path(directory).glob("hook-*.py")
    return hook


def hidden_imports() -> set[str]:
    return set(runpy.run_path(str(the_hook()))["hiddenimports"])


def test_the_hook_adds_every_handler() -> None:
    package = asyncgroup.broker.handlers
    assert the_hook().stem == f"hook-{package.__name__}"
    modules = {path.stem for path in Path(package.__path__[0]).glob("*.py")} - {"__init__"}
    assert len(modules) >= len(APIS)
    assert hidden_imports() == {f"{package.__name__}.{name}" for name in modules}


def test_missing_handlers_are_an_error() -> None:
    check_all_registered(APIS)
    with pytest.raises(
        HandlersMissing, match=rf"lacks the modules of {len(APIS) - 1} of its {len(APIS)} APIs \(Produce, "
    ):
        check_all_registered([18])
    with pytest.raises(ImportError, match=r"of 1 of its \d+ APIs \(Fetch\): a frozen program has to include"):
        check_all_registered(set(APIS) - {1})
    assert issubclass(HandlersMissing, AsyncGroupError)


def test_the_import_of_the_handlers_fails_if_their_directory_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = asyncgroup.broker.handlers
    for name in ("HANDLERS", "iter_modules"):
        monkeypatch.setattr(
            package, name, getattr(package, name)
        )  # a second import replaces them: to be restored
    monkeypatch.setattr(pkgutil, "iter_modules", lambda *_: [])
    monkeypatch.setattr(registry, "HANDLERS", {})
    with pytest.raises(HandlersMissing, match=rf"the modules of {len(APIS)} of its {len(APIS)} APIs"):
        importlib.reload(package)


@pytest.mark.full
def test_a_program_with_the_modules_of_imports_and_of_the_hook(tmp_path: Path) -> None:
    """Without the hook's, an import of the broker says what is missing; before it was found by the first client."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    finder = ModuleFinder(path=[str(ROOT)])
    finder.run_script(str(script))
    followed = {name for name in finder.modules if name.partition(".")[0] == "asyncgroup"}
    assert "asyncgroup.producer.producer" in followed

    def frozen(modules: set[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", FREEZE + PROGRAM],
            input=json.dumps(sorted(modules)),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=ROOT,
        )

    without, complete = frozen(followed), frozen(followed | hidden_imports())
    assert without.returncode == 1
    assert (
        f"HandlersMissing: the embedded broker lacks the modules of {len(APIS) - 1} of its" in without.stderr
    )
    assert (complete.returncode, complete.stdout, complete.stderr) == (0, "b'one'\n", "")


@pytest.mark.soak
@pytest.mark.timeout(1_000)
@pytest.mark.skipif(find_spec("PyInstaller") is None, reason="PyInstaller is not installed")
def test_a_program_frozen_by_pyinstaller(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    freeze = [sys.executable, "-m", "PyInstaller", "--onedir", "--log-level", "WARN", "program.py"]
    subprocess.run(freeze, cwd=tmp_path, timeout=900, check=True)
    frozen = tmp_path / "dist" / "program" / "program"
    ended = subprocess.run([frozen], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout) == (0, "b'one'\n"), ended.stderr
