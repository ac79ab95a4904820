"""Start the process `benchmarks.spark.spark_process`, send it functions to run, and restart it if Spark ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from benchmarks.common import ClientFailed, started_process

__all__ = ["MeasuredSpark", "TurnFailed", "measured_spark"]

START_TIMEOUT: Final = 120.0
END_TIMEOUT: Final = 30.0
STDERR_TIMEOUT: Final = 5.0
"""Seconds to read the remaining standard error of a process that has ended."""
ALIVE_TIMEOUT: Final = 60.0
"""Seconds for the minimal job that checks if Spark works."""
STDERR_LINES: Final = 40
LINE_BYTES: Final = 1 << 20


class TurnFailed(ClientFailed):
    """One measurement failed; `MeasuredSpark.restart_if_lost` says whether Spark ended."""


class MeasuredSpark:
    """A process with a Spark session (`benchmarks.spark.spark_process`) that runs measuring functions."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = dict(config)
        self._stack = AsyncExitStack()
        self._stderr_lines: deque[str] = deque(maxlen=STDERR_LINES)
        self._stderr_task: asyncio.Task[None] | None = None
        self._is_lost = False
        self.version = ""

    def __repr__(self) -> str:
        return f"<MeasuredSpark {self.version} pid {self._process.pid}>"

    async def start(self) -> None:
        """Start the process and wait until Spark is ready. Raises ClientFailed."""
        command = (
            sys.executable,
            "-m",
            "benchmarks.spark.spark_process",
            json.dumps({"config": self._config}),
        )
        self._process = await self._stack.enter_async_context(started_process(*command, limit=LINE_BYTES))
        self._stderr_task = asyncio.create_task(self._read_stderr(), name="stderr of Spark's process")
        self._is_lost = False
        try:
            self.version = str((await self._read("Spark", START_TIMEOUT))["spark"])
        except TurnFailed as error:
            raise ClientFailed(str(error)) from None

    async def measure(self, function: str, settings: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Call a function (`module:name`) in the process; raise TurnFailed if it fails or exceeds `limit` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"function": function, "settings": settings}).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # if the process has ended, `_read` raises the error
            await self._process.stdin.drain()
        return await self._read(function, limit)

    async def restart_if_lost(self) -> bool:
        """After a failure: restart Spark if its Java or the whole process has ended; return whether it was restarted."""
        if not self._is_lost:
            try:
                await self.measure("benchmarks.spark.spark_process:alive", {}, ALIVE_TIMEOUT)
            except TurnFailed:
                self._is_lost = True
        if not self._is_lost:
            return False
        await self.aclose()
        await self.start()
        return True

    async def end(self) -> None:
        """Ask the process to stop Spark and wait at most `END_TIMEOUT` seconds for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._wait_for_stderr(END_TIMEOUT)

    async def aclose(self) -> None:
        """Kill the process if it is still running, and stop reading its standard error."""
        await self._stack.aclose()
        if self._stderr_task is not None:
            self._stderr_task.cancel()
            await asyncio.gather(self._stderr_task, return_exceptions=True)

    async def _read_stderr(self) -> None:
        """Keep the last lines of the process's standard error, until it ends."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._stderr_lines.append(line.decode(errors="replace").rstrip())

    async def _wait_for_stderr(self, limit: float) -> None:
        if self._stderr_task is not None:
            await asyncio.wait({self._stderr_task}, timeout=limit)

    async def _read(self, what: str, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                line = await self._process.stdout.readline()
        except TimeoutError:
            self._is_lost = True  # a late answer would be taken for that of the next function
            raise TurnFailed(f"{what} took longer than {limit:g} s\n{self._tail()}") from None
        if not line:
            self._is_lost = True
            await self._wait_for_stderr(STDERR_TIMEOUT)
            raise TurnFailed(f"the process with Spark has ended:\n{self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise TurnFailed(f"{what}: {answer['error']}")
        figures: dict[str, Any] = answer["figures"]
        return figures

    def _tail(self) -> str:
        return "\n".join(self._stderr_lines)


@asynccontextmanager
async def measured_spark(config: Mapping[str, str]) -> AsyncIterator[MeasuredSpark]:
    """Start a Spark with these settings in a separate process."""
    spark = MeasuredSpark(config)
    try:
        await spark.start()
        yield spark
        await spark.end()
    finally:
        await spark.aclose()
