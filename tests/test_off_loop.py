"""Computations on threads."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings

import pytest

from asyncgroup.broker.log.compacted_batches import compress
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.off_loop import run_off_loop
from asyncgroup.wire.decompression import CODECS, decompress


def bomb() -> bytes:
    return compress(CODECS["gzip"], bytes(90 << 20))


async def test_the_loop_is_not_blocked_during_decompression():
    data, gaps = bomb(), []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    out = await run_off_loop(decompress, CODECS["gzip"], data)
    taken = time.perf_counter() - began
    ticking.cancel()
    assert len(out) == 90 << 20
    assert len(gaps) > 10
    assert max(gaps) < taken / 2


async def test_exceptions_are_raised_in_the_caller():
    with pytest.raises(CorruptRecordsError):
        await run_off_loop(decompress, CODECS["zstd"], b"nonsense")


async def test_a_full_default_executor_does_not_block():
    done = threading.Event()
    blocking = [asyncio.create_task(asyncio.to_thread(done.wait, 30)) for _ in range(64)]
    try:
        assert await asyncio.wait_for(run_off_loop(sum, [1, 2]), 10) == 3
    finally:
        done.set()
        await asyncio.gather(*blocking)


@pytest.mark.virtual
async def test_in_virtual_time_the_order_is_deterministic():
    order: list[str] = []

    async def compute(name: str) -> None:
        await run_off_loop(order.append, name)

    async def other() -> None:
        order.append("other")

    await asyncio.gather(compute("a"), other(), compute("b"))
    assert order == ["other", "a", "b"]
    assert asyncio.get_running_loop().time() == 0.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_starts_its_own_threads():
    asyncio.run(run_off_loop(sum, [1]))
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python warns about forking with threads, which is tested here
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        result = asyncio.run(run_off_loop(sum, [20, 22]))
        os.write(writer, b"%d" % result)
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, 9)
        time.sleep(0.01)
    assert os.read(reader, 10) == b"42"
    os.close(reader)
