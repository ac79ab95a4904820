"""Hooks: each listener hears what it has a method for, and none can hurt the client."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import asyncgroup
from asyncgroup import ConfigError, hooks
from asyncgroup.hooks import EVENTS, Hooks


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def on_commit(self, *values: object) -> None:
        self.heard.append(values)


class Broken(Listener):
    def on_commit(self, *values: object) -> None:
        raise RuntimeError("a hook's bug")


def test_listeners_hear_what_they_have_methods_for() -> None:
    first, second = Listener(), Listener()
    all_of_them = Hooks(iter([first, object(), second]))
    all_of_them.emit("on_commit", "g", {}, None)
    all_of_them.emit("on_heartbeat", "g", 0.1)
    assert first.heard == second.heard == [("g", {}, None)]


def test_no_hooks_at_all() -> None:
    for event in EVENTS:
        Hooks().emit(event)


def test_an_exception_in_a_hook_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    Hooks([Broken(), listener]).emit("on_commit", 1)
    assert listener.heard == [(1,)]
    assert "hook on_commit raised" in caplog.text
    assert "a hook's bug" in caplog.text


def test_a_coroutine_method_is_refused_as_nobody_would_await_it() -> None:
    class Waits:
        async def on_heartbeat(self, group_id: str, seconds: float) -> None: ...

    with pytest.raises(ConfigError, match=r"async def on_heartbeat.*plain methods"):
        Hooks([Listener(), Waits()])


def test_an_event_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        Hooks().emit("on_comit")


def test_every_emitted_event_is_declared_with_its_values() -> None:
    """Each `emit("on_…", …)` in the package names a declared event and gives as many values as its comment lists."""
    declared = {}
    for line in inspect.getsource(hooks).splitlines():
        name, found, values = line.strip().partition('",  # (')
        if found:
            declared[name.strip('"')] = len(values.rstrip(")").split(","))
    assert set(declared) == EVENTS
    for path in Path(asyncgroup.__file__ or "").parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "emit"
            ):
                event, *values = node.args
                if not isinstance(event, ast.Constant) or any(
                    isinstance(value, ast.Starred) for value in values
                ):
                    continue
                assert event.value in EVENTS, f"{path}:{node.lineno}"
                assert len(values) == declared[event.value], f"{path}:{node.lineno}: {event.value}"
