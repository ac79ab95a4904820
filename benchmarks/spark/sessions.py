"""The measured process as its parent sees it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.running import ClientFailed, worker

__all__ = ["MeasuredSpark", "measured_spark"]

START_LIMIT: Final = 120.0
END_LIMIT: Final = 30.0
LAST_WORDS: Final = 5.0
"""Seconds for what a process that has ended said before."""
SAID_LINES: Final = 40
LINE_BYTES: Final = 1 << 20


class MeasuredSpark:
    """A process with a Spark session (`benchmarks.spark.session`) that measures what it is asked to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said: deque[str] = deque(maxlen=SAID_LINES)
        self.version = ""

    def __repr__(self) -> str:
        return f"<MeasuredSpark {self.version} pid {self._process.pid}>"

    @property
    def pid(self) -> int:
        """The process id of the Python that Java is a child of."""
        return self._process.pid

    async def start(self) -> None:
        """Wait until Spark is there; raises ClientFailed."""
        self._listening = asyncio.create_task(self._listen(), name="what Spark's process says")
        self.version = str((await self._read("Spark", START_LIMIT))["spark"])

    async def measure(self, function: str, settings: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Call a function (`module:name`) there; raises ClientFailed with what it raised, or after `limit` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"function": function, "settings": settings}).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._read(function, limit)

    async def end(self) -> None:
        """Let it stop Spark and tidy up; after `END_LIMIT` seconds it may be killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait({self._listening}, timeout=END_LIMIT)

    async def aclose(self) -> None:
        """Listen no more."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        """Keep the last lines of what the process says beside its answers, until it ends."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._said.append(line.decode(errors="replace").rstrip())

    async def _read(self, what: str, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ClientFailed(f"{what} took longer than {limit:g} s\n{self._tail()}") from None
        if not line:
            await asyncio.wait({self._listening}, timeout=LAST_WORDS)
            raise ClientFailed(f"the process with Spark has ended:\n{self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClientFailed(f"{what}: {answer['error']}")
        figures: dict[str, Any] = answer["figures"]
        return figures

    def _tail(self) -> str:
        return "\n".join(self._said)


@asynccontextmanager
async def measured_spark(config: Mapping[str, str]) -> AsyncIterator[MeasuredSpark]:
    """A process of its own with a Spark that has these settings."""
    command = (sys.executable, "-m", "benchmarks.spark.session", json.dumps({"config": dict(config)}))
    async with worker(*command, limit=LINE_BYTES) as process:
        spark = MeasuredSpark(process)
        try:
            await spark.start()
            yield spark
            await spark.end()
        finally:
            await spark.aclose()
