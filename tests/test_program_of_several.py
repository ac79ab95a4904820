"""`Program` with several consumers, without a broker: which error it raises, and whom it waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import pytest

from asyncgroup.program import Program

pytestmark = pytest.mark.virtual


class Consumer:
    """A consumer whose work ends some time after its close; both may fail."""

    def __init__(
        self,
        name: str,
        log: list[str],
        *,
        fails_after: float | None = None,
        close_error: Exception | None = None,
        late_error: Exception | None = None,
    ) -> None:
        self.group_id = name
        self._log = log
        self._fails_after = fails_after
        self._close_error = close_error
        self._late_error = late_error
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._log.append(f"{self.group_id} entered")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._log.append(f"{self.group_id} exited")

    async def aclose(self) -> None:
        self._closing.set()
        if self._close_error is not None:
            raise self._close_error

    async def work(self) -> None:
        if self._fails_after is not None:
            await asyncio.sleep(self._fails_after)
            raise LookupError(f"handler of {self.group_id}")
        await self._closing.wait()
        await asyncio.sleep(1.0)
        self._log.append(f"{self.group_id} ended")
        if self._late_error is not None:
            raise self._late_error


async def run(*consumers: Consumer) -> int:
    return await Program(consumers, [each.work for each in consumers]).run()


async def test_the_first_error_is_raised_after_the_others_have_ended() -> None:
    log: list[str] = []
    with pytest.raises(LookupError, match="handler of b"):
        await run(Consumer("a", log), Consumer("b", log, fails_after=1.0), Consumer("c", log))
    assert log[3:5] == ["a ended", "c ended"]
    assert log[5:] == ["c exited", "b exited", "a exited"]


async def test_an_error_of_a_close_neither_hides_the_first_one_nor_ends_the_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    failing = Consumer("a", log, close_error=ValueError("close of a"))
    with pytest.raises(LookupError, match="handler of b"):
        await run(failing, Consumer("b", log, fails_after=1.0))
    assert "a ended" in log
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR] == [
        "another error while the program ended: ValueError: close of a"
    ]


async def test_an_error_that_follows_does_not_take_the_place_of_the_first_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    late = Consumer("a", log, late_error=RuntimeError("end of a"))
    with pytest.raises(LookupError, match="handler of b"):
        await run(late, Consumer("b", log, fails_after=1.0))
    assert "another error while the program ended: RuntimeError: end of a" in caplog.text


@asynccontextmanager
async def context(name: str, log: list[str]) -> AsyncIterator[None]:
    log.append(f"{name} entered")
    try:
        yield
    finally:
        log.append(f"{name} exited")


async def test_contexts_surround_the_consumers() -> None:
    log: list[str] = []
    consumer = Consumer("a", log)
    program = Program([consumer], [consumer.work], [context("probes", log), context("pool", log)])
    running = asyncio.create_task(program.run())
    await asyncio.sleep(1.0)
    await consumer.aclose()
    assert await running == 0
    assert log == [
        *("probes entered", "pool entered", "a entered"),
        *("a ended", "a exited", "pool exited", "probes exited"),
    ]


async def test_contexts_are_exited_after_an_error() -> None:
    log: list[str] = []
    consumer = Consumer("a", log, fails_after=1.0)
    with pytest.raises(LookupError, match="handler of a"):
        await Program([consumer], [consumer.work], [context("probes", log)]).run()
    assert log == ["probes entered", "a entered", "a exited", "probes exited"]


async def test_all_that_are_closed_end_it_without_an_error() -> None:
    log: list[str] = []
    consumers = [Consumer("a", log), Consumer("b", log)]
    running = asyncio.create_task(run(*consumers))
    await asyncio.sleep(1.0)
    await consumers[0].aclose()
    await asyncio.sleep(10.0)
    assert not running.done(), "the other one goes on"
    await consumers[1].aclose()
    assert await running == 0
