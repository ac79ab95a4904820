"""How the broker is built: what changes its state is one step on the loop, and no time passes but the loop's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import asyncgroup.broker

ROOM = Path(asyncgroup.broker.__file__).parent

WAITS = {
    "call.py": "a request is late by a fault, or by a slow node",
    "cluster.py": "nodes start and end",
    "fault.py": "requests are held, tests wait for a hit",
    "handlers/produce.py": "large batches are checked on a thread, before any of the request is carried out",
    "history.py": "tests wait for a request",
    "node.py": "listeners start and end",
    "tls.py": "a connection begins with a handshake",
}
"""The modules that may wait, and for what: nothing of that changes topics, logs, groups or transactions half-way."""


def found(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """The nodes of these kinds in all modules of the broker."""
    for path in sorted(ROOM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield str(path.relative_to(ROOM)), node


def test_state_changes_in_steps_without_a_wait() -> None:
    waiting = {place for place, _ in found(ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)}
    assert waiting == set(WAITS)


def test_nothing_runs_beside_the_loop() -> None:
    imported = {
        (place, name.split(".")[0])
        for place, node in found(ast.Import, ast.ImportFrom)
        for name in _names(node)
    }
    assert imported, "it is looked for in the right place"
    beside = {"threading", "concurrent", "multiprocessing", "subprocess", "queue"}
    assert {(place, name) for place, name in imported if name in beside} == set()


def test_one_look_at_the_clock_of_the_machine() -> None:
    """`WallClock` takes the time of day once, when the cluster starts."""
    clocks = {"time", "datetime", "sched"}
    looks = {
        (place, name)
        for place, node in found(ast.Import, ast.ImportFrom)
        for name in _names(node)
        if name in clocks
    }
    assert looks == {("clock.py", "time")}
    calls = [
        (place, ast.unparse(node))
        for place, node in found(ast.Attribute)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    ]
    assert calls == [("clock.py", "time.time_ns")]


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    assert isinstance(node, ast.Import)
    return [alias.name for alias in node.names]
