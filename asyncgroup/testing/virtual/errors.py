"""The errors of virtual time: each names the tasks that wait, instead of letting a test hang.

    VirtualTimeError
    ├── VirtualDeadlock     no callback, timer or real work is left
    ├── VirtualTimeLimit    the clock would pass `max_virtual_time`
    └── VirtualLivelock     callbacks keep running while the clock does not move

They are raised by the call that runs the loop (`run_until_complete`, `Runner.run`, `run_virtual`), not in a task.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import FrameType

from asyncgroup.errors import AsyncGroupError

__all__ = ["VirtualDeadlock", "VirtualLivelock", "VirtualTimeError", "VirtualTimeLimit", "describe_tasks"]

_MAX_TASKS = 30
"""Tasks that a message describes; it only counts the others, to stay readable."""

_ASYNCIO = str(Path(asyncio.__file__).parent)


class VirtualTimeError(AsyncGroupError):
    """Base class: the run in virtual time cannot continue."""


class VirtualDeadlock(VirtualTimeError):
    """No callback is ready, no timer is scheduled and no real work is under way, so the run would never end.

    Also raised when real work (a thread, a watched descriptor) caused no callback for `real_wait_limit` real seconds.
    The message names the tasks that wait, and the line at which each waits.
    """


class VirtualTimeLimit(VirtualTimeError):
    """The next timer is due after `max_virtual_time`: usually some work repeats without end."""


class VirtualLivelock(VirtualTimeError):
    """The loop ran too many iterations without the clock moving: usually a retry without delay, or a `sleep(0)` loop."""


def describe_tasks(tasks: set[asyncio.Task[object]]) -> str:
    """Return one line per task: its name, its coroutine, and the innermost line outside asyncio at which it waits."""
    ordered = sorted(tasks, key=_natural_order)
    lines = [f"  - {_describe(task)}" for task in ordered[:_MAX_TASKS]]
    if len(ordered) > _MAX_TASKS:
        lines.append(f"  - and {len(ordered) - _MAX_TASKS} more")
    return "\n".join(lines)


def _natural_order(task: asyncio.Task[object]) -> list[tuple[int, str]]:
    """Sort key that puts Task-9 before Task-10. `all_tasks()` is a set, and messages must not depend on its order."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", task.get_name())]


def _describe(task: asyncio.Task[object]) -> str:
    coroutine = task.get_coro()
    label = f"{task.get_name()} ({getattr(coroutine, '__qualname__', coroutine)})"
    frame = _waiting_frame(coroutine)
    if frame is None:
        return label
    place = "/".join(Path(frame.f_code.co_filename).parts[-2:])
    return f"{label} waits at {place}:{frame.f_lineno} in {frame.f_code.co_name}"


def _waiting_frame(awaitable: object) -> FrameType | None:
    """Follow the chain of awaited coroutines to the innermost frame outside asyncio."""
    found: FrameType | None = None
    while awaitable is not None:
        frame = _first(awaitable, "cr_frame", "gi_frame", "ag_frame")
        if isinstance(frame, FrameType) and (
            found is None or not frame.f_code.co_filename.startswith(_ASYNCIO)
        ):
            found = frame
        awaitable = _first(awaitable, "cr_await", "gi_yieldfrom", "ag_await")
    return found


def _first(thing: object, *names: str) -> object:
    """The first of these attributes that exists and is not None."""
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)
