"""Commands without the package rich: those that draw tables name what to install, all others work."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import io
from pathlib import Path

import pytest

import asyncgroup
from asyncgroup.cli import extras, main
from asyncgroup.cli.work import _show
from asyncgroup.cli.work_view import QueueView

PACKAGE = Path(asyncgroup.__file__).parent
DEMO = PACKAGE / "demo"

DRAWING = {
    (
        "dlq",
        "list",
        "orders-DLQ",
        "-b",
        "127.0.0.1:1",
    ): "the table needs the package rich, which is not installed: "
    "pip install 'asyncgroup[cli]', or use --json",
    (
        "demo",
        "--no-spark",
    ): "the demo needs the package rich, which is not installed: pip install 'asyncgroup[cli]'",
    ("demo", "--only-produce"): "the demo needs the package rich, which is not installed: "
    "pip install 'asyncgroup[cli]'",
    ("demo",): "the demo needs the package rich, which is not installed: pip install 'asyncgroup[demo]'",
}
"""Commands that draw, and their errors."""


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "rich" else found(name))


@pytest.mark.usefixtures("without_rich")
@pytest.mark.parametrize("arguments", DRAWING, ids=" ".join)
def test_a_command_that_draws_names_what_to_install(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr() == ("", f"asyncgroup {arguments[0]}: {DRAWING[arguments]}\n")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("without_rich")
def test_work_prints_status_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    ended = asyncio.Event()
    ended.set()
    asyncio.run(_show(QueueView.__new__(QueueView), ended, "group g", as_json=False))
    assert terminal.getvalue() == "working: group g\nfor a live table: pip install 'asyncgroup[cli]'\n"


@pytest.mark.usefixtures("without_rich")
def test_work_as_json_does_not_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def show(*_: object) -> None:
        """Stands in for `show_json`."""

    monkeypatch.setattr("asyncgroup.cli.work_view.show_json", show)
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    asyncio.run(_show(QueueView.__new__(QueueView), asyncio.Event(), "group g", as_json=True))
    assert terminal.getvalue() == "working: group g\n"


def test_rich_is_imported_when_something_is_drawn() -> None:
    """Only modules that are imported after a check import it with themselves: those of the demo, and the table of `dlq list`."""
    found = [
        path
        for path in PACKAGE.rglob("*.py")
        for text in [path.read_text(encoding="utf-8")]
        if "rich" in text and any("rich" in _packages(node) for node in ast.parse(text).body)
    ]
    assert found
    assert [path for path in found if path.parent != DEMO and path.name != "dead_letter_table.py"] == []
    assert DEMO / "__init__.py" not in found


def _packages(node: ast.stmt) -> set[str]:
    """Return the top-level packages that a statement of a module imports."""
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return {alias.name.partition(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()
