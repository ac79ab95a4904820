"""The member processes of the chaos story: start, kill, freeze, disconnect and close them; each has its own journal."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path

from tests.real.chaos.checker import Evidence, Span
from tests.real.chaos.journal import Life, read_life
from tests.real.chaos.member import KINDS, Settings

__all__ = ["MemberProcess", "Members"]

ROOT = Path(__file__).parents[3]
READY_LIMIT = 60.0
CLOSE_LIMIT = 90.0


class MemberProcess:
    """A running member; `name` is the name of its journal."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    def signal(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)


class Members:
    """One member of each kind; a member that ends is replaced by a new process of its kind."""

    def __init__(self, settings: Settings, directory: Path, evidence: Evidence, rng: random.Random) -> None:
        self._settings = settings
        self._directory = directory
        self._evidence = evidence
        self._random = rng
        self._running: dict[str, MemberProcess] = {}  # by kind
        self._count = 0  # processes so far
        self.counts: dict[str, int] = {}
        """The number of times of each fault."""

    async def start(self) -> None:
        """Start one member of each kind."""
        for kind in KINDS:
            await self._start(kind)

    async def _start(self, kind: str) -> None:
        self._count += 1
        name = f"{kind}-{self._count}"
        settings = replace(self._settings, kind=kind, journal=str(self._directory / f"{name}.log"))
        command = (sys.executable, "-m", "tests.real.chaos.member", json.dumps(asdict(settings)))
        errors = (self._directory / f"{name}.err").open("wb")
        pipe = asyncio.subprocess.PIPE
        with errors:
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=errors)
        self._running[kind] = MemberProcess(name, process)
        assert process.stdout is not None
        async with asyncio.timeout(READY_LIMIT):
            await process.stdout.readline()

    async def storm(self, ending: asyncio.Event) -> None:
        """Run a fault of a random member every few seconds until `ending` is set; all members run then."""
        faults: list[Callable[[str], Awaitable[None]]] = [
            self._kill,
            self._restart,
            self._restart,
            self._freeze_long,
            self._freeze_shortly,
            self._cut,
            self._cut,
            self._cut_longer,
        ]
        while not ending.is_set():
            await asyncio.sleep(self._random.uniform(3, 8))
            fault = self._random.choice(faults)
            name = fault.__name__.strip("_")
            self.counts[name] = self.counts.get(name, 0) + 1
            await fault(self._random.choice(KINDS))

    async def _kill(self, kind: str) -> None:
        member = self._running[kind]
        self._evidence.killed.add(member.name)
        member.signal(signal.SIGKILL)
        await member.process.wait()
        await self._start(kind)

    async def _restart(self, kind: str) -> None:
        await self._close(self._running[kind])
        await self._start(kind)

    async def _close(self, member: MemberProcess) -> None:
        member.signal(signal.SIGTERM)
        async with asyncio.timeout(CLOSE_LIMIT):
            code = await member.process.wait()
        assert code == 0, f"{member.name} ended with code {code}: {self.errors(member.name)}"

    async def _freeze_long(self, kind: str) -> None:
        """Stop a member for longer than its session timeout."""
        member = self._running[kind]
        begin = time.monotonic()
        await self._freeze(member, self._settings.session_timeout + self._random.uniform(1, 4))
        self._evidence.frozen[member.name].append(Span(begin, time.monotonic()))

    async def _freeze_shortly(self, kind: str) -> None:
        """Stop a member for a part of its session timeout, so that it stays in the group."""
        await self._freeze(
            self._running[kind], self._settings.session_timeout * self._random.uniform(0.1, 0.4)
        )

    async def _freeze(self, member: MemberProcess, seconds: float) -> None:
        member.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            member.signal(signal.SIGCONT)

    async def _cut(self, kind: str) -> None:
        self._running[kind].signal(signal.SIGUSR1)

    async def _cut_longer(self, kind: str) -> None:
        self._running[kind].signal(signal.SIGUSR2)

    async def close(self) -> None:
        """Close all members at the same time."""
        await asyncio.gather(*map(self._close, self._running.values()))

    def kill(self) -> None:
        """Kill the running processes, after a story that failed."""
        for member in self._running.values():
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGKILL)

    def lives(self) -> list[Life]:
        """Return the journals of all processes so far."""
        return [read_life(path) for path in sorted(self._directory.glob("*.log"))]

    def errors(self, name: str) -> str:
        """Return the end of a member's standard error."""
        return (self._directory / f"{name}.err").read_text(errors="replace")[-3000:]
