"""The errors of virtual time: each says what the loop was waiting for instead of letting a test hang.

    VirtualTimeError
    ├── VirtualDeadlock     nothing can happen any more
    ├── VirtualTimeLimit    the clock passed `max_virtual_time`
    └── VirtualLivelock     the loop turns and turns, and the clock does not move

They leave the running loop itself (`run_until_complete`, `Runner.run`, `run_virtual`); no task sees them.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import FrameType

from asyncgroup.errors import AsyncGroupError

__all__ = ["VirtualDeadlock", "VirtualLivelock", "VirtualTimeError", "VirtualTimeLimit", "describe_tasks"]

_MOST_TASKS = 30
"""More than these are only counted: a message must stay readable."""

_ASYNCIO = str(Path(asyncio.__file__).parent)


class VirtualTimeError(AsyncGroupError):
    """A virtual run that cannot go on."""


class VirtualDeadlock(VirtualTimeError):
    """No callback is ready, no timer is scheduled and no real work is under way, so the run would wait for ever.

    Also raised when real work (a thread, a watched descriptor) gave no sign for `real_wait_limit` real seconds.
    The message names every task that is still waiting, and where.
    """


class VirtualTimeLimit(VirtualTimeError):
    """The next timer lies further ahead than `max_virtual_time` allows: something repeats itself for ever."""


class VirtualLivelock(VirtualTimeError):
    """Too many turns of the loop at one instant: usually a retry without any delay, or a `sleep(0)` loop."""


def describe_tasks(tasks: set[asyncio.Task[object]]) -> str:
    """One line per task: its name, its coroutine, and the innermost line outside asyncio at which it waits."""
    ordered = sorted(tasks, key=_natural_order)
    lines = [f"  - {_describe(task)}" for task in ordered[:_MOST_TASKS]]
    if len(ordered) > _MOST_TASKS:
        lines.append(f"  - and {len(ordered) - _MOST_TASKS} more")
    return "\n".join(lines)


def _natural_order(task: asyncio.Task[object]) -> list[tuple[int, str]]:
    """Sort key under which Task-9 stands before Task-10: `all_tasks()` is a set, and messages must not vary."""
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
    """Follow what each coroutine awaits down to the last frame that is not asyncio's own."""
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
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)
