"""handled_exception: the one of the coroutines that await, not of a thread that runs their event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncgroup.workqueue.handled_exception import handled_exception


async def found() -> str | None:
    await asyncio.sleep(0)
    error = handled_exception()
    return None if error is None else str(error)


async def in_except(text: str) -> str | None:
    try:
        raise ValueError(text)
    except ValueError:
        return await found()


async def raises() -> None:
    raise ValueError("below")


@asynccontextmanager
async def handling(results: list[str | None]) -> AsyncIterator[None]:
    try:
        yield
    except ValueError:
        results.append(await found())


def test_except_blocks_of_coroutines_count() -> None:
    async def program() -> list[str | None]:
        results = [await found(), await in_except("own")]
        try:
            await raises()
        except ValueError:
            results.append(await found())
            results.append(await asyncio.create_task(found()))  # another task handles nothing
        results.append(await found())
        async with handling(results):
            raise ValueError("in the block")
        return results

    expected = [None, "own", "below", None, None, "in the block"]
    assert asyncio.run(program()) == expected
    try:
        raise OSError("of the last run")
    except OSError:  # a program that starts again
        assert asyncio.run(program()) == expected
