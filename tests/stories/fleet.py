"""Members under traffic that are restarted one by one with other assignors or another protocol, in any environment."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Self

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session, TopicPartition
from tests.stories.environment import CONSUMER, Environment
from tests.stories.sharing import are_shared_evenly
from tests.stories.traffic import partitions_of

__all__ = ["Fleet"]

STEP = 0.1
"""Seconds between two records of a partition."""


class _Reader(Handler):
    """Marks each record after a short time, and notes it."""

    def __init__(self, env: Environment, handled: dict[int, list[int]]) -> None:
        self.env = env
        self.handled = handled

    async def consume_claim(self, _session: Session, claim: Claim) -> None:
        async for record in claim:
            self.handled[record.partition].append(record.offset)
            await asyncio.sleep(STEP / 10)
            claim.mark(record)
            self.env.bell.ring()


class _Running(NamedTuple):
    group: ConsumerGroup
    task: asyncio.Task[None]


class Fleet:
    """Members under traffic, each of which can be restarted with other assignors.

    `partitions` is the number of the topic's partitions; `settling` are the seconds of traffic after each restart.
    """

    def __init__(self, env: Environment, partitions: int, settling: float = 2.0) -> None:
        self.env = env
        self.settling = settling
        self.partitions = range(partitions)
        self.handled: dict[int, list[int]] = {number: [] for number in self.partitions}
        """By partition: the offsets of its records in the order of their handling."""
        self.running: dict[str, _Running] = {}
        self._produced = 0

    async def __aenter__(self) -> Self:
        self._producer = asyncio.create_task(self._produce())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._producer.cancel()
        await asyncio.wait([self._producer])
        for name in list(self.running):
            await self.stop(name)

    async def _produce(self) -> None:
        while True:
            await asyncio.shield(asyncio.ensure_future(self.env.produce(1, self.partitions)))
            self._produced += 1
            await asyncio.sleep(STEP)

    def group(self, name: str) -> ConsumerGroup:
        return self.running[name].group

    def session(self, name: str) -> Session:
        session = self.group(name).session
        assert session is not None
        return session

    async def start(self, name: str, *assignors: str, settles: bool = True, **config: Any) -> None:
        """Start a member; by default wait until all partitions have an owner. With the consumer protocol it has no assignors."""
        if config.get("group_protocol") == "consumer":  # what is the group's in this protocol is not set
            given = {**CONSUMER, **config}
        else:
            given = {"assignors": assignors, **config}
        options = ConsumerConfig(**self.env.config(name, **given))
        group = ConsumerGroup(self.env.bootstrap_servers, self.env.group_id, options, hooks=[self.env.bell])
        group.cluster._inner.random.seed(name)
        await group.__aenter__()
        run = group.run(self.env.topic, _Reader(self.env, self.handled))
        self.running[name] = _Running(group, asyncio.create_task(run, name=name))
        if settles:
            await self.settled()

    async def stop(self, name: str) -> None:
        """Close a member in an orderly way."""
        former = self.running.pop(name)
        await former.group.aclose()
        await former.task

    async def restart(self, name: str, *assignors: str, **config: Any) -> None:
        """Stop a member, let the others take over, start it with these assignors."""
        await self.stop(name)
        await self.settled()
        await self.start(name, *assignors, **config)
        await asyncio.sleep(self.settling)

    async def settled(self) -> None:
        """Wait until the running members share all partitions evenly."""

        def is_even() -> bool:
            parts = [partitions_of(running.group) for running in self.running.values()]
            return are_shared_evenly(self.partitions, parts)

        await self.env.bell.until(is_even, f"{len(self.running)} members share everything", self.env.limit)

    async def all_handled_once(self) -> None:
        """Stop producing, wait for all records, and check that each was handled once and in order."""
        committed = await self._finish()
        for number, offsets in self.handled.items():
            assert offsets == list(range(len(offsets))), number
            assert committed[TopicPartition(self.env.topic, number)] == len(offsets)

    async def all_handled(self) -> None:
        """Stop producing, wait for all records, and check that each was handled, and committed.

        The members leave one after the other, each after the rest has settled: the last commit of a member is refused if the
        group has got another generation since.
        """
        while len(self.running) > 1:
            await self.stop(next(iter(self.running)))
            await self.settled()
            await asyncio.sleep(self.settling)
        committed = await self._finish()
        for number, offsets in self.handled.items():
            assert set(offsets) == set(range(len(set(offsets)))), number
            assert committed[TopicPartition(self.env.topic, number)] == len(set(offsets))

    async def _finish(self) -> dict[TopicPartition, int]:
        """Stop producing, wait for all records, stop all members; return what is committed."""
        self._producer.cancel()
        await asyncio.wait([self._producer])
        total = self._produced
        assert total > self.settling / STEP
        await self.env.bell.until(
            lambda: all(len(set(handled)) >= total for handled in self.handled.values()),
            f"{total} records of each partition",
            self.env.limit,
        )
        for name in list(self.running):
            await self.stop(name)
        return await self.env.committed()
