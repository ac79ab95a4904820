"""Partitions whose offset is not in the log: looks up where the policy sends them, many by one request.

A broker that lost its log's end puts all its partitions out of range at once (sarama #2342): they are looked up
together, and those of one broker never wait for another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Protocol

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.list_offsets import EARLIEST, LATEST, Found, heals, look_up
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.resets import LogRange, WallClock, out_of_range, out_of_range_policy, timestamp_of
from asyncgroup.consumer.waiting import Waiting
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition

__all__ = ["ResetOwner", "Resetter"]

_log = logging.getLogger("asyncgroup.consumer")

TOGETHER = 0.01
"""Seconds: resets that are due within so short a time share their requests."""


class ResetOwner(Protocol):
    """Who fetches the partitions."""

    def found(self, consumer: PartitionConsumer) -> None:
        """It has a position again."""

    def failed(self, consumer: PartitionConsumer, error: AsyncGroupError) -> float:
        """Its offset could not be looked up for now: the pause before the next try."""

    def refused(self, consumer: PartitionConsumer, error: Exception) -> None:
        """Its reader must get the error."""

    def heal(self, consumers: Iterable[PartitionConsumer], error: Exception) -> None:
        """Something went wrong and heals by itself."""


class Resetter:
    """Applies `out_of_range_reset`. A seek of the reader's makes a reset void."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        owner: ResetOwner,
        spawn: Callable[..., None],
        clock: WallClock,
    ) -> None:
        self._cluster, self._config, self._owner = cluster, config, owner
        self._spawn, self._clock = spawn, clock
        self._waiting = Waiting(TOGETHER)
        self._versions: dict[PartitionConsumer, int] = {}
        self._is_stale = False

    def __repr__(self) -> str:
        return f"<Resetter: {len(self._versions)} partitions>"

    def put(self, consumer: PartitionConsumer, pause: float) -> None:
        """Find a position for this partition, after a pause."""
        self._versions.setdefault(consumer, consumer.version)
        self._waiting.put(consumer, pause)

    def discard(self, consumer: PartitionConsumer) -> None:
        """Nobody wants it any more."""
        self._versions.pop(consumer, None)
        self._waiting.discard(consumer)

    async def run(self) -> None:
        """For ever."""
        while True:
            consumers = await self._waiting.due()
            if self._is_stale:
                self._is_stale = False
                await self._refresh(consumers)
            by_leader: dict[int, list[PartitionConsumer]] = {}
            for consumer in consumers:
                by_leader.setdefault(self._cluster.view.leader(consumer.tp), []).append(consumer)
            for group in by_leader.values():
                self._spawn(self._look_up, group)

    async def _refresh(self, consumers: list[PartitionConsumer]) -> None:
        try:
            await self._cluster.refresh()
        except AsyncGroupError as error:
            self._owner.heal(consumers, error)

    async def _look_up(self, consumers: list[PartitionConsumer]) -> None:
        """Partitions of one leader: where their logs start and end, and what the policy says."""
        policy = out_of_range_policy(self._config)
        asked = [consumer.tp for consumer in consumers if self._is_wanted(consumer)]
        specs = [EARLIEST, LATEST]
        if isinstance(policy, timedelta):
            specs.append(timestamp_of(policy, self._clock))
        answers = await asyncio.gather(
            *(
                look_up(self._cluster, dict.fromkeys(asked, spec), self._config.isolation_level)
                for spec in specs
            )
        )
        for consumer in consumers:
            if self._is_wanted(consumer):
                self._apply(consumer, answers)
            elif self._versions.pop(consumer, None) is not None:
                self._owner.found(consumer)  # sought elsewhere meanwhile

    def _is_wanted(self, consumer: PartitionConsumer) -> bool:
        return self._versions.get(consumer) == consumer.version

    def _apply(self, consumer: PartitionConsumer, answers: list[Found]) -> None:
        tp = consumer.tp
        if problem := _problem(tp, answers):
            if not heals(problem):
                del self._versions[consumer]
                self._owner.refused(consumer, problem)
                return
            self._is_stale = True
            self._waiting.put(consumer, self._owner.failed(consumer, problem))
            return
        del self._versions[consumer]
        start, end, *at_time = (found.offsets[tp] for found in answers)
        log, offset = LogRange(start, end), consumer.fetch_offset
        policy = out_of_range_policy(self._config)
        if policy == "error":
            self._owner.refused(consumer, out_of_range(tp, offset, log))
            return
        target = start if policy == "earliest" else end
        for found_at_time in at_time:
            # the three were asked at once, and the log may have changed in between
            target = min(max(start, found_at_time), end)
        error = out_of_range(tp, offset, log, target)
        _log.warning("%s", error)
        consumer.reset(target, end)
        self._owner.heal([consumer], error)
        self._owner.found(consumer)


def _problem(tp: TopicPartition, answers: list[Found]) -> AsyncGroupError | None:
    """What went wrong with a partition, if anything; what does not heal first."""
    return min((found.problems[tp] for found in answers if tp in found.problems), key=heals, default=None)
