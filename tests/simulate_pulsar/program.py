"""What the simulated programs have in common: they start, go on after failures, close, and die."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar import PulsarClient, PulsarConfig
from tests.simulation.program import SimulatedProgram

if TYPE_CHECKING:
    from tests.simulate_pulsar.world import PulsarWorld

__all__ = ["PulsarProgram"]


class PulsarProgram(SimulatedProgram["PulsarWorld"]):
    """A program with one client. All its connections come from `host`."""

    def __init__(self, world: PulsarWorld, name: str, host: str) -> None:
        super().__init__(world, name, host)
        self.client: PulsarClient | None = None
        """The client while it is open."""
        self.gate = asyncio.Event()
        """Whether its handler goes on."""
        self.gate.set()
        self._stopping = asyncio.Event()

    @abstractmethod
    async def work(self, client: PulsarClient) -> None:
        """Open what it has, and use it until `_stopping` is set."""

    def _prepare(self) -> None:
        self._stopping.clear()

    async def _run_once(self) -> None:
        async with PulsarClient(self.world.service_url, self._config) as client:
            self.client = client
            try:
                await self.work(client)
            finally:
                self.client = None

    def _has_failed(self, error: AsyncGroupError) -> None:
        self.world.story.count("programs that failed")
        super()._has_failed(error)

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
        self.gate.set()
        super().die()

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

    def consumers(self) -> Mapping[int, Any]:
        """Return the consumers of its client, by id."""
        with suppress(AsyncGroupError):
            if self.client is not None:
                return self.client._inner.consumers
        return {}
