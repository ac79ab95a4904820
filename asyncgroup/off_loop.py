"""Run on threads what would block the event loop for long: decompression of large batches, imports of large modules.

While the loop is blocked no heartbeat is sent or answered. Importing this file loads little besides asyncio, as the
import of the client itself runs on such a thread.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, TypeVarTuple

__all__ = ["is_virtual", "load_module", "load_off_loop", "run_off_loop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS: Final = 2
"""Number of concurrent computations, which also limits the large batches in memory at the same time."""

_executors: list[ThreadPoolExecutor] = []


def is_virtual(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this is a loop in virtual time, where `run_off_loop` uses the loop's own thread."""
    return hasattr(loop, "run_computation")


async def run_off_loop(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run `function(*args)` on a thread; return its result or raise its exception.

    The function must not use state that the event loop's thread modifies. If the caller is cancelled, the function
    continues on its thread. On a virtual-time loop it runs on the loop's own thread, between two turns of the loop:
    computations take no virtual time, and the end of a thread would depend on the machine.
    """
    loop: Any = asyncio.get_running_loop()
    run_computation: Callable[..., T] | None = getattr(loop, "run_computation", None)
    if run_computation is not None:
        await asyncio.sleep(0)
        return run_computation(function, *args)
    # Not the loop's default executor: it may be full of blocking calls that wait for the result of this computation.
    if not _executors:
        _executors.append(ThreadPoolExecutor(_THREADS, thread_name_prefix="asyncgroup.off_loop"))
    result: T = await loop.run_in_executor(_executors[0], function, *args)
    return result


async def load_off_loop(load: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call a function that imports modules on a thread: the loop may already serve others, and asyncio's debug mode warns of a blocked loop."""
    if is_virtual(asyncio.get_running_loop()):
        load(*args)  # without a turn of the loop: a first run in a process would differ from the next ones
    else:
        await run_off_loop(load, *args)


async def load_module(name: str) -> None:
    """Import a module on a thread, unless it is imported: that would block the loop for longer than asyncio's debug mode allows."""
    if name not in sys.modules:
        await load_off_loop(importlib.import_module, name)


if hasattr(os, "register_at_fork"):
    # a child process inherits the object without its threads
    os.register_at_fork(after_in_child=_executors.clear)
