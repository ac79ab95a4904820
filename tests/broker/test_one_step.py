"""Architecture of the broker: state changes are single synchronous steps, and only the loop's clock is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import asyncgroup.broker

PACKAGE = Path(asyncgroup.broker.__file__).parent

WAITS = {
    "cluster.py": "nodes start and stop",
    "control/call.py": "a request is delayed by a fault or by `slow_node`",
    "control/runtime.py": "nodes start and stop",
    "handlers/produce.py": "large batches are validated in a thread, before the request changes anything",
    "net/listener.py": "a port is bound",
    "net/tls.py": "a connection starts with a handshake",
    "node.py": "listeners start and stop",
    "traffic/fault.py": "tests wait for a hit",
    "traffic/history.py": "tests wait for a request",
    "traffic/injection.py": "requests are held or delayed, tests wait for a hit",
    "traffic/recorder.py": "tests wait for a request",
}
"""The modules that may await, and for what. None of these waits splits a change of topics, logs, groups or transactions."""


def found(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield (module, node) for the syntax nodes of these kinds in all modules of the broker."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield str(path.relative_to(PACKAGE)), node


def test_only_listed_modules_await() -> None:
    waiting = {module for module, _ in found(ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)}
    assert waiting == set(WAITS)


def test_the_broker_starts_no_threads_or_processes() -> None:
    imported = {
        (module, name.split(".")[0])
        for module, node in found(ast.Import, ast.ImportFrom)
        for name in _names(node)
    }
    assert imported, "no import was found: wrong directory?"
    forbidden = {"threading", "concurrent", "multiprocessing", "subprocess", "queue"}
    # the levels of loggers belong to the process, whose clusters may run in different threads: a lock
    assert {(module, name) for module, name in imported if name in forbidden} == {("loggers.py", "threading")}
    used = {
        ast.unparse(node)
        for module, node in found(ast.Attribute)
        if module == "loggers.py" and ast.unparse(node).startswith("threading.")
    }
    assert used == {"threading.Lock"}


def test_the_system_clock_is_read_in_one_module() -> None:
    """`WallClock` reads the time of day once, when the cluster starts."""
    clocks = {"time", "datetime", "sched"}
    imports = {
        (module, name)
        for module, node in found(ast.Import, ast.ImportFrom)
        for name in _names(node)
        if name in clocks
    }
    assert imports == {("clock.py", "time")}
    calls = [
        (module, ast.unparse(node))
        for module, node in found(ast.Attribute)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    ]
    assert calls == [("clock.py", "time.time_ns")]


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    assert isinstance(node, ast.Import)
    return [alias.name for alias in node.names]
