"""Start `benchmarks.member` as a child process, send it commands and read its result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.common import ClientFailed, started_process
from benchmarks.member import Settings

__all__ = ["LIMIT", "MemberProcess", "start_member"]

LIMIT: Final = 60.0
"""Seconds that a member may take for one step."""
LINE_LIMIT: Final = 64 << 20
ERROR_LINES: Final = 30


async def start_member(
    stack: AsyncExitStack, client: str, settings: Settings, program: Path | None = None
) -> MemberProcess:
    """Start a member of the client library `client`; the process is killed if it outlives `stack`.

    `program` is the one for clients in Go; without it `benchmarks.member` runs.
    """
    run = (sys.executable, "-m", "benchmarks.member") if program is None else (str(program),)
    command = (*run, client, json.dumps(asdict(settings)))
    process = await stack.enter_async_context(started_process(*command, limit=LINE_LIMIT))
    member = MemberProcess(process, client)
    stack.push_async_callback(member.aclose)
    return member


class MemberProcess:
    """A running member.

    `assigned` is the number of partitions in the member's latest assignment.
    """

    def __init__(self, process: asyncio.subprocess.Process, client: str) -> None:
        self.client = client
        self.assigned = 0
        self._process = process
        self._ready = asyncio.Event()
        self._result: dict[str, Any] | None = None
        self._errors: list[str] = []
        self._tasks = [asyncio.create_task(self._read_output()), asyncio.create_task(self._read_errors())]

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(b"ready"):
                self._ready.set()
            elif line.startswith(b"assigned"):
                self.assigned = int(line.split()[1])
            elif line.startswith(b"{"):
                self._result = json.loads(line)
        self._ready.set()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._errors.append(line.decode())

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    async def ready(self) -> None:
        """Wait until the process has finished its imports."""
        await self._ready.wait()

    def tell(self) -> None:
        """Send a line: the first makes the member join, the second makes it leave."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process is still running."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def result(self) -> dict[str, Any]:
        """Wait for the end of the process and return what it printed. Raises ClientFailed if there is no result."""
        try:
            async with asyncio.timeout(LIMIT):
                await asyncio.gather(self._process.wait(), *self._tasks)
        except TimeoutError:
            raise ClientFailed(f"a member of {self.client} did not end within {LIMIT:g} s") from None
        if self._result is None:
            errors = "".join(self._errors[-ERROR_LINES:])
            raise ClientFailed(f"a member of {self.client} failed:\n{errors}")
        return self._result

    async def aclose(self) -> None:
        """Stop reading the output of the process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
