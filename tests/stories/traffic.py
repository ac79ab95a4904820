"""Steady traffic on the partitions of a topic, and a handler that notes when each record was handled and by whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Final

from asyncgroup import Claim, ConsumerGroup, Session
from tests.scenario.support import WorkHandler, now, running
from tests.stories.environment import Environment

__all__ = [
    "PARTITIONS",
    "STEP",
    "Handled",
    "Reader",
    "completed_traffic",
    "partitions_of",
    "topics_of",
    "traffic",
]

PARTITIONS: Final = 6

STEP: Final = 0.05
"""Seconds between two records of a partition."""

Handled = dict[int, list[tuple[float, str, int]]]
"""By partition: time, member and offset of each record."""


class Reader(WorkHandler):
    """Marks each record, and notes when it was handled and by which member."""

    def __init__(self, env: Environment, name: str, handled: Handled) -> None:
        super().__init__(env)  # type: ignore[arg-type]
        self.name = name
        self.handled = handled

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        self.note(f"claim {claim.partition}")
        async for record in claim:
            self.handled[record.partition].append((now(), self.name, record.offset))
            claim.mark(record)
            self.env.bell.ring()
        self.note(f"end {claim.partition}")


@contextlib.asynccontextmanager
async def traffic(env: Environment, topic: str | None = None) -> AsyncIterator[list[float]]:
    """Write a record to every partition in each step; yield the times at which steps ended, to which more are added."""
    times: list[float] = []

    async def produce() -> None:
        while True:
            await env.produce(1, range(PARTITIONS), topic)
            times.append(now())
            await asyncio.sleep(STEP)

    async with running(produce()):
        yield times


@contextlib.asynccontextmanager
async def completed_traffic(env: Environment, partitions: Iterable[int]) -> AsyncIterator[None]:
    """Write a record to each of these partitions in each step, and complete the last step at the end of the block."""
    ends = asyncio.Event()

    async def produce() -> None:
        while not ends.is_set():
            await env.produce(1, partitions)
            await asyncio.sleep(STEP)

    task = asyncio.create_task(produce(), name="traffic")
    try:
        yield
    finally:
        ends.set()
        await task


def partitions_of(group: ConsumerGroup) -> list[int]:
    """Return the partitions of a member, none without a session."""
    return [tp.partition for tp in group.session.partitions] if group.session is not None else []


def topics_of(group: ConsumerGroup) -> set[str]:
    """Return the topics of which a member has partitions."""
    return set() if group.session is None else {tp.topic for tp in group.session.partitions}
