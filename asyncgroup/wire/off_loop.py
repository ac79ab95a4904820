"""Computations that would hold the event loop for long, decompression of large batches above all, on threads.

Everything that decompresses what others sent asks `should_offload` first: a hundred kilobytes may stand for a hundred
megabytes, and while the loop waits for them no heartbeat is sent or answered.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, TypeVarTuple

from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.decompression import CODECS, decompress, may_exceed
from asyncgroup.wire.primitives import Buffer

__all__ = ["LARGE_COMPRESSED", "LARGE_DECOMPRESSED", "run_off_loop", "should_offload"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LARGE_DECOMPRESSED: Final = 1 << 20
"""Bytes, decompressed: about a millisecond of work, with gzip a few."""

LARGE_COMPRESSED: Final = 1 << 16
"""Bytes, compressed: even to find out how much they hold may take long, if they are cut into small enough blocks."""

_THREADS: Final = 2
"""How many computations run at once, and so how many large batches are in memory at once."""

_executors: list[ThreadPoolExecutor] = []


def should_offload(codec: int, data: Buffer) -> bool:
    """Return whether `data`, compressed with this codec, should be decompressed off the loop."""
    if codec == CODECS["none"]:
        return False
    if len(data) > LARGE_COMPRESSED:
        return True
    if not may_exceed(codec, data, LARGE_DECOMPRESSED):
        return False
    if codec != CODECS["gzip"]:
        return True
    try:  # gzip does not say how much it holds, and one byte in a thousand is not usual
        decompress(codec, data, LARGE_DECOMPRESSED)
    except (CorruptRecordsError, zlib.error):
        return True
    return False


async def run_off_loop(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Return what `function(*args)` returns, or raise what it raises, while the loop goes on.

    The function runs on a thread and may touch nothing that the loop changes. A caller that is cancelled leaves it
    running. On a loop in virtual time it runs between two turns of the loop: computing takes no time there, and a
    thread would end at a moment that depends on the machine.
    """
    loop: Any = asyncio.get_running_loop()
    run_computation: Callable[..., T] | None = getattr(loop, "run_computation", None)
    if run_computation is not None:
        await asyncio.sleep(0)
        return run_computation(function, *args)
    if (
        not _executors
    ):  # not the loop's own: that may be full of blocking calls that wait for what is computed here
        _executors.append(ThreadPoolExecutor(_THREADS, thread_name_prefix="decompression"))
    result: T = await loop.run_in_executor(_executors[0], function, *args)
    return result


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executors.clear)  # a child has the object, but not its threads
