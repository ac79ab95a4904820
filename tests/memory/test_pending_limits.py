"""Several limits at once: nothing is lost or left over, after any cancellations."""

from __future__ import annotations

import asyncio

from hypothesis import given, strategies as st

from asyncgroup.errors import ClosedError
from asyncgroup.memory.buffer_memory import BufferMemory
from asyncgroup.memory.pending_limits import PendingLimit, PendingLimits


@given(st.lists(st.tuples(st.sampled_from(["ask", "cancel", "free"]), st.integers(1, 6)), max_size=60))
def test_several_limits_never_leak(steps: list[tuple[str, int]]) -> None:
    """Any order of waits, cancellations and releases leaves the limits as they were."""

    async def run() -> None:
        sizes, counts, shared = BufferMemory(10), BufferMemory(2, unit="records"), BufferMemory(8)
        limits = PendingLimits(
            [PendingLimit(sizes), PendingLimit(counts, counts_records=True), PendingLimit(shared)]
        )
        tasks: dict[asyncio.Task[None], int] = {}
        held: list[int] = []

        async def ask(size: int) -> None:
            if not limits.try_reserve(size):
                await limits.reserve(size)
            held.append(size)

        for kind, size in steps:
            if kind == "ask":
                tasks[asyncio.create_task(ask(size))] = size
            elif kind == "cancel" and tasks:
                list(tasks)[size % len(tasks)].cancel()
            elif held:
                limits.release(held.pop())
            for _ in range(size % 3):
                await asyncio.sleep(0)
        while any(not task.done() for task in tasks):
            await asyncio.sleep(0)
            if held:
                limits.release(held.pop())
        while held:
            limits.release(held.pop())
        assert [sizes.used, counts.used, shared.used, limits.waiting] == [0, 0, 0, 0]

    asyncio.run(run())


def test_a_caller_between_two_limits_fails_with_the_others() -> None:
    """It was granted the first limit, and has not run since then: it must not begin to wait for the next one."""

    async def run() -> None:
        first, second = BufferMemory(10), BufferMemory(10)
        limits = PendingLimits([PendingLimit(first), PendingLimit(second)])
        assert limits.try_reserve(10)
        waiting = asyncio.create_task(limits.reserve(5))
        await asyncio.sleep(0)
        first.release(10)
        limits.fail(lambda: ClosedError("closed"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(waiting.exception(), ClosedError)
        assert (first.used, second.used, limits.waiting) == (0, 10, 0)

    asyncio.run(run())
