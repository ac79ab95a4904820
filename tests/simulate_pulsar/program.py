"""What the simulated programs have in common: they start, go on after failures, close, and die."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar import PulsarClient, PulsarConfig
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulate_pulsar.world import PulsarWorld

__all__ = ["PulsarProgram"]

PAUSE: Final = 0.5
"""Seconds until a program that failed starts again."""


class PulsarProgram(ABC):
    """A program with one client. All its connections come from `host`."""

    def __init__(self, world: PulsarWorld, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.rng = random.Random(f"{world.plan.seed} {name}")
        self.should_run = True
        self.is_dead = False
        self.client: PulsarClient | None = None
        """The client while it is open."""
        self.gate = asyncio.Event()
        """Whether its handler goes on."""
        self.gate.set()
        self._stopping = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "active" if self.is_active else "closed"
        return f"<{type(self).__name__} {self.name}: {state}>"

    @property
    def is_active(self) -> bool:
        """Whether it runs and is not about to close."""
        return self.should_run and not self.is_dead

    @abstractmethod
    async def work(self, client: PulsarClient) -> None:
        """Open what it has, and use it until `_stopping` is set."""

    def start(self) -> None:
        """Start."""
        with self.world.network.source(self.host):
            self._life = self.world.spawn(self._run(), f"program {self.name}")

    async def _run(self) -> None:
        while self.is_active:
            self._stopping.clear()
            try:
                async with PulsarClient(self.world.service_url, self._config) as client:
                    self.client = client
                    try:
                        await self.work(client)
                    finally:
                        self.client = None
            except asyncio.CancelledError:
                if not self.is_dead:
                    raise
            except AsyncGroupError as error:
                self.world.story.count("programs that failed")
                self.write(f"failed: {type(error).__name__}: {error}")
            if self.is_active:
                await asyncio.sleep(PAUSE)

    @property
    def _config(self) -> PulsarConfig:
        return PulsarConfig(
            connect_timeout=3.0,
            operation_timeout=8.0,
            keep_alive_interval=4.0,
            retry_backoff_max=2.0,
            partitions_update_interval=3.0,
        )

    # --- its ends ---------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Close for good."""
        self.should_run = False
        self._stopping.set()
        self.gate.set()

    def restart(self) -> None:
        """Close, and start again."""
        self._stopping.set()

    def die(self) -> None:
        """Simulate a crash: from now on it reports nothing."""
        self.is_dead = True
        self.gate.set()
        if self._life is not None:
            self._life.cancel()

    async def _until_stopping(self, task: asyncio.Task[Any]) -> None:
        """Wait until it is to stop, or a task has ended; then cancel the task, and raise its error."""
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([stop, task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (stop, task):
                each.cancel()
            await asyncio.wait([stop, task])
        if not task.cancelled():
            task.result()

    # --- its reports ------------------------------------------------------------------------------------------------------

    def write(self, what: str) -> None:
        """Add a line to the story."""
        if not self.is_dead:
            self.world.story.write(self.name, what)

    def fail(self, violation: Violation) -> None:
        """Report a violated invariant."""
        if not self.is_dead:
            self.world.fail(violation)

    def consumers(self) -> Mapping[int, Any]:
        """Return the consumers of its client, by id."""
        with suppress(AsyncGroupError):
            if self.client is not None:
                return self.client._inner.consumers
        return {}
