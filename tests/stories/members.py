"""Group members of the stories: in this process, or in a process of their own that can be killed and suspended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from asyncgroup import ConsumerConfig, ConsumerGroup
from asyncgroup.testing.java_server.watchdog import Watchdog
from tests.stories.bell import Bell
from tests.stories.log import MemberLog, RecordedSession, RecordingHandler, ReportingHooks

__all__ = ["LocalMember", "Member", "ProcessMember"]

ROOT = Path(__file__).parents[2]


class Member:
    """A member of a story: its log of events, and how it starts and leaves."""

    def __init__(self, name: str, bell: Bell) -> None:
        self.name = name
        self.log = MemberLog(name)
        self._bell = bell

    def report(self, kind: str, **facts: Any) -> None:
        """Apply an event to the log and ring the bell."""
        self.log.apply({"kind": kind, **facts})
        self._bell.ring()

    @property
    def session(self) -> RecordedSession | None:
        return self.log.session

    @property
    def member_id(self) -> str:
        """The member id of its last session."""
        return self.log.sessions[-1].member_id

    async def start(self, topics: list[str]) -> None:
        """Start to consume."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Close the group, with LeaveGroup; safe to call twice."""
        raise NotImplementedError


class LocalMember(Member):
    """A member on this event loop. `source()` is the context in which it connects, so that it can be disconnected alone."""

    def __init__(
        self,
        name: str,
        bell: Bell,
        bootstrap_servers: str,
        group_id: str,
        config: ConsumerConfig,
        source: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        handler: type[RecordingHandler] = RecordingHandler,
    ) -> None:
        super().__init__(name, bell)
        self.source = source
        self.handler = handler(self.report)
        hooks = [ReportingHooks(self.report), bell]
        self.group = ConsumerGroup(bootstrap_servers, group_id, config, hooks=hooks)
        # makes the order in which nodes are asked, and jitter, the same in every run
        self.group.cluster._inner.random.seed(name)
        self._task: asyncio.Task[None] | None = None

    async def start(self, topics: list[str]) -> None:
        with self.source():
            await self.group.__aenter__()
        self._run(topics)
        await asyncio.sleep(0)  # let `run()` start, so that it can be closed

    def _run(self, topics: list[str]) -> None:
        with self.source():
            self._task = asyncio.create_task(self._consume(topics), name=f"member {self.name}")

    async def _consume(self, topics: list[str]) -> None:
        failure: BaseException | None = None
        self.report("running")
        try:
            await self.group.run(topics, self.handler)
        except Exception as error:
            failure = error
        finally:
            self.report("stopped", failure=repr(failure) if failure else None)

    async def _stop_consuming(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def change_topics(self, topics: list[str]) -> None:
        """Stop consuming and consume other topics, with the same group object."""
        await self._stop_consuming()
        self._run(topics)

    async def leave(self) -> None:
        with self.source():
            await self.group.aclose()
        if self._task is not None:
            await asyncio.wait([self._task])


class ProcessMember(Member):
    """A member in its own process (`tests.stories.child`), which a watchdog kills if this process ends."""

    def __init__(
        self,
        name: str,
        bell: Bell,
        bootstrap_servers: str,
        group_id: str,
        config: dict[str, Any],
        directory: Path,
    ) -> None:
        super().__init__(name, bell)
        self._arguments = {
            "bootstrap_servers": bootstrap_servers,
            "group_id": group_id,
            "config": config,
        }
        self._directory = directory / name
        self._process: asyncio.subprocess.Process | None = None
        self._watchdog: Watchdog | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self, topics: list[str]) -> None:
        self._directory.mkdir()
        arguments = json.dumps({**self._arguments, "topics": topics})
        with (self._directory / "stderr").open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.stories.child",
                arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        self._watchdog = Watchdog(self._directory)
        self._watchdog.guard(self._process.pid)
        self._reader = asyncio.create_task(self._read(), name=f"reader of {self.name}")

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.report(**json.loads(line))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        self.signal(signal.SIGKILL)
        await self._wait_ended()

    async def leave(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self.signal(signal.SIGCONT)  # a suspended process would not see the end of stdin
        self._process.stdin.close()
        await self._wait_ended()
        if self._process.returncode:
            raise AssertionError(f"{self.name} failed:\n{(self._directory / 'stderr').read_text()}")

    async def _wait_ended(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        assert self._watchdog is not None
        try:
            async with asyncio.timeout(30):
                await self._reader
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._process.wait()
            raise
        finally:
            self._watchdog.release(self._process.pid)
            await asyncio.to_thread(self._watchdog.close)
