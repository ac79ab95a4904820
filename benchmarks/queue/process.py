"""The dialogue with a measured process (see `benchmarks.queue.load`), and its memory as the operating system counts it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.common import ClientFailed, started_process

__all__ = ["MeasuredProcess", "start_process"]

START_LIMIT: Final = 60.0
"""Seconds for imports, and for closing."""
LINE_LIMIT: Final = 16 << 20
ERROR_LINES: Final = 30


@asynccontextmanager
async def start_process(name: str, command: Sequence[str]) -> AsyncIterator[MeasuredProcess]:
    """Start a measured process, which is killed at the end of the block if it is still running."""
    async with started_process(*command, limit=LINE_LIMIT) as process:
        measured = MeasuredProcess(name, process)
        try:
            yield measured
        finally:
            await measured.aclose()


class MeasuredProcess:
    """A running client, with the words that it has printed so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process
        self._words = {word: asyncio.Event() for word in ("ready", "waiting", "blocked")}
        self._ended = asyncio.Event()
        self._result: dict[str, Any] | None = None
        self._errors: list[str] = []
        self._tasks = [asyncio.create_task(self._read_output()), asyncio.create_task(self._read_errors())]

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                word = line.decode(errors="replace").strip()
                if word in self._words:
                    self._words[word].set()
                elif word.startswith("{"):
                    self._result = json.loads(word)
                    break
        finally:
            self._ended.set()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._errors = [*self._errors[1 - ERROR_LINES :], line.decode(errors="replace")]

    async def printed(self, word: str, limit: float) -> bool:
        """Wait until the process has printed a word; return False if it has not after `limit` seconds, or has ended."""
        events = (self._words[word], self._ended)
        waiting = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return self._words[word].is_set()

    def go_on(self) -> None:
        """Send a line: the first one starts the client, the second one ends the measurement."""
        assert self._process.stdin is not None
        if self._process.returncode is None:
            self._process.stdin.write(b"\n")

    async def ended(self, limit: float) -> bool:
        """Wait until the figures are there; return False if they are not after `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    async def result(self) -> dict[str, Any]:
        """Return the figures. Raises ClientFailed if there are none."""
        in_time = await self.ended(START_LIMIT)
        if self._result is None:
            reason = "failed" if in_time else f"did not end within {START_LIMIT:g} s"
            raise ClientFailed(f"{self._name} {reason}:\n{''.join(self._errors)}")
        return self._result

    def peak_memory(self) -> int:
        """Return the peak resident memory of the process in bytes (VmHWM); 0 if the system does not provide it."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return 0
        found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(found[0]) * 1024 if found else 0

    async def aclose(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
