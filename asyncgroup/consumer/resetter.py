"""Look up positions for partitions in AwaitReset: those out of range, and those with a seek by name or time.

A broker that lost the end of its logs makes all its partitions out of range at once (sarama #2342): they are looked up in
one request, and partitions of one broker never wait for another broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Protocol

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.delay_queue import DelayQueue
from asyncgroup.consumer.list_offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsResult,
    is_retriable_error,
    list_offsets_once,
)
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.resets import (
    LogRange,
    MillisClock,
    out_of_range_error,
    out_of_range_policy,
    parse_start,
    timestamp_of,
)
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition

__all__ = ["OffsetResetter", "ResetListener"]

_log = logging.getLogger("asyncgroup.consumer")

LOOKUP_WINDOW = 0.01
"""Resets that are due within this time, in seconds, share their requests."""


class ResetListener(Protocol):
    """The callbacks of the resetter; implemented by Fetchers."""

    def position_found(self, consumer: PartitionConsumer) -> None:
        """The partition has a position and can be fetched."""

    def lookup_failed(self, consumer: PartitionConsumer, error: AsyncGroupError) -> float:
        """A lookup failed with a retriable error; return the pause in seconds before the next try."""

    def raise_to_reader(self, consumer: PartitionConsumer, error: Exception) -> None:
        """A lookup failed for good; raise the error to the reader."""

    def report(self, consumers: Iterable[PartitionConsumer], error: Exception) -> None:
        """Report an error that the client recovers from by itself."""


class OffsetResetter:
    """Applies `out_of_range_reset` and seeks by name or time. A later seek by the reader cancels both."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        listener: ResetListener,
        spawn: Callable[..., None],
        clock: MillisClock,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._listener = listener
        self._spawn = spawn
        self._clock = clock
        self._awaiting_reset = DelayQueue(LOOKUP_WINDOW)
        self._versions: dict[
            PartitionConsumer, int
        ] = {}  # by partition: its version when the reset was requested
        self._is_stale = False  # a lookup failed: refresh the metadata before the next one

    def __repr__(self) -> str:
        return f"<OffsetResetter: {len(self._versions)} partitions>"

    def put(self, consumer: PartitionConsumer, pause: float) -> None:
        """Look up a position for the partition after `pause` seconds."""
        self._versions[consumer] = consumer.version
        self._awaiting_reset.put(consumer, pause)

    def discard(self, consumer: PartitionConsumer) -> None:
        """Cancel the lookup for a partition."""
        self._versions.pop(consumer, None)
        self._awaiting_reset.discard(consumer)

    async def run(self) -> None:
        """Look up due partitions, without end."""
        while True:
            consumers = await self._awaiting_reset.wait_due()
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
            self._listener.report(consumers, error)

    async def _look_up(self, consumers: list[PartitionConsumer]) -> None:
        """Look up partitions of one leader: the targets of seeks; for resets the log's start and end and, with a policy by
        duration, the offset at that time."""
        asked = {consumer: consumer.version for consumer in consumers if self._is_wanted(consumer)}
        seeks, resets = {}, []
        for consumer in asked:
            if consumer.seek_target is None:
                resets.append(consumer.tp)
            elif (timestamp := parse_start(consumer.seek_target, self._clock).timestamp) is not None:
                seeks[consumer.tp] = timestamp
        found, *answers = await asyncio.gather(
            self._ask(seeks), *(self._ask(dict.fromkeys(resets, spec)) for spec in self._reset_specs())
        )
        for consumer in consumers:
            if self._is_wanted(consumer) and asked.get(consumer) == consumer.version:
                self._apply(consumer, [found] if consumer.tp in seeks else answers)
            elif self._versions.pop(consumer, None) is not None:
                self._awaiting_reset.discard(consumer)
                self._listener.position_found(consumer)  # the reader has called seek in the meantime

    async def _ask(self, wanted: Mapping[TopicPartition, int]) -> ListOffsetsResult:
        return await list_offsets_once(self._cluster, wanted, self._config.isolation_level)

    def _reset_specs(self) -> list[int]:
        policy = out_of_range_policy(self._config)
        by_time = [timestamp_of(policy, self._clock)] if isinstance(policy, timedelta) else []
        return [EARLIEST, LATEST, *by_time]

    def _is_wanted(self, consumer: PartitionConsumer) -> bool:
        return self._versions.get(consumer) == consumer.version

    def _apply(self, consumer: PartitionConsumer, answers: list[ListOffsetsResult]) -> None:
        tp = consumer.tp
        if problem := _problem(tp, answers):
            if not is_retriable_error(problem):
                del self._versions[consumer]
                consumer.seek_target = None
                self._listener.raise_to_reader(consumer, problem)
                return
            self._is_stale = True
            self._awaiting_reset.put(consumer, self._listener.lookup_failed(consumer, problem))
            return
        del self._versions[consumer]
        if consumer.seek_target is not None:
            consumer.resolve_seek(answers[0].listed[tp].offset)
            self._listener.position_found(consumer)
            return
        start, end, *at_time = (found.listed[tp].offset for found in answers)
        log, offset = LogRange(start, end), consumer.fetch_offset
        policy = out_of_range_policy(self._config)
        if policy == "error":
            self._listener.raise_to_reader(consumer, out_of_range_error(tp, offset, log))
            return
        target = start if policy == "earliest" else end
        for found_at_time in at_time:
            # the three lookups ran concurrently, and the log may have changed between them
            target = min(max(start, found_at_time), end)
        error = out_of_range_error(tp, offset, log, target)
        _log.warning("%s", error)
        consumer.reset(target, end)
        self._listener.report([consumer], error)
        self._listener.position_found(consumer)


def _problem(tp: TopicPartition, answers: list[ListOffsetsResult]) -> AsyncGroupError | None:
    """Return the error of a partition's lookups, if any; one that is not retriable first."""
    return min(
        (found.problems[tp] for found in answers if tp in found.problems),
        key=is_retriable_error,
        default=None,
    )
