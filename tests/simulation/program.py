"""SimulatedProgram: what the programs of all simulations have in common. They start, go on after failures, close, and die."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

from asyncgroup.errors import AsyncGroupError
from tests.simulation.story import Violation
from tests.simulation.world import PlannedWorld

__all__ = ["PAUSE", "SimulatedProgram"]

PAUSE: Final = 0.5
"""Seconds until a program that failed starts again."""

WorldT = TypeVar("WorldT", bound=PlannedWorld[Any])


class SimulatedProgram(ABC, Generic[WorldT]):
    """A program. All its connections come from `host`."""

    def __init__(self, world: WorldT, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.rng = random.Random(f"{world.plan.seed} {name}")
        self.should_run = True
        self.is_dead = False
        self._life: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "active" if self.is_active else "closed"
        return f"<{type(self).__name__} {self.name}: {state}>"

    @property
    def is_active(self) -> bool:
        """Whether it runs and is not about to close."""
        return self.should_run and not self.is_dead

    def start(self) -> None:
        """Start the program."""
        with self.world.network.source(self.host):
            self._life = self.world.spawn(self._run(), f"program of {self.name}")

    async def _run(self) -> None:
        while self.is_active:
            self._prepare()
            try:
                await self._run_once()
            except asyncio.CancelledError:
                if not self.is_dead:
                    raise
            except AsyncGroupError as error:
                self._has_failed(error)
            if self.is_active:
                await asyncio.sleep(PAUSE)

    @abstractmethod
    def _prepare(self) -> None:
        """Prepare to open its client."""

    @abstractmethod
    async def _run_once(self) -> None:
        """Open its client, and use it until it closes."""

    def _has_failed(self, error: AsyncGroupError) -> None:
        self.write(f"program failed: {type(error).__name__}: {error}")

    def die(self) -> None:
        """Simulate a crash: from now on it reports nothing, and its tasks are canceled."""
        self.is_dead = True
        if self._life is not None:
            self._life.cancel()

    # --- its reports ------------------------------------------------------------------------------------------------------

    def write(self, what: str) -> None:
        """Add a line to the story."""
        if not self.is_dead:
            self.world.story.write(self.name, what)

    def fail(self, violation: Violation) -> None:
        """Report a violated invariant."""
        if not self.is_dead:
            self.world.fail(violation)
