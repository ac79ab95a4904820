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


def found_at_once() -> str | None:
    """As `Delivery.nack`, which is a plain function."""
    error = handled_exception(2)  # that of the caller
    return None if error is None else str(error)


def by_a_plain_function() -> str | None:
    return found_at_once()


def in_plain_except(text: str) -> str | None:
    try:
        raise ValueError(text)
    except ValueError:
        return found_at_once()


def test_except_blocks_of_plain_functions_count() -> None:
    async def program() -> list[str | None]:
        results = [found_at_once(), in_plain_except("own"), by_a_plain_function()]
        try:
            await raises()
        except ValueError:
            results += [found_at_once(), by_a_plain_function()]
        called: asyncio.Future[list[str | None]] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(
            lambda: called.set_result([found_at_once(), by_a_plain_function(), in_plain_except("own")])
        )
        return results + await called

    expected = [None, "own", None, "below", "below", None, None, "own"]
    assert asyncio.run(program()) == expected
    try:
        raise OSError("of the last run")
    except OSError:  # a program that starts again
        assert asyncio.run(program()) == expected
    assert in_plain_except("without a loop") == "without a loop"
