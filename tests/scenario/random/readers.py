"""Readers for random tests: they read, seek, pause and mark at random, and check every record that they receive."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from uuid import UUID

from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group.sessions.claim_source import connect_offsets
from asyncgroup.model import Record, TopicPartition
from asyncgroup.offsets import PartitionMarks
from asyncgroup.wire.messages import NO_UUID
from tests.scenario.random.logs import RandomLogs

__all__ = ["ReadHistory", "Reader"]


class ReadHistory:
    """The records that all readers of one partition, one after another, have received.

    `excused` are offsets of the current log that need not be delivered: after a seek a reader cannot know
    what the log lost before that offset.
    """

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.seen: set[bytes] = set()
        self.excused: set[int] = set()
        self.count = 0


class Reader:
    """Reads one partition until its consumer ends, by records or batches, at random speed."""

    def __init__(
        self,
        logs: RandomLogs,
        history: ReadHistory,
        consumer: PartitionConsumer,
        offsets: PartitionMarks,
        rng: random.Random,
    ) -> None:
        self.logs = logs
        self.history = history
        self.consumer = consumer
        self.offsets = offsets
        self.rng = rng
        self.floor = consumer.initial_offset
        """The lowest offset that may come next."""
        self.is_calm = False
        self.may_be_past_end = False
        """Whether the log was truncated while the position had no leader epoch: marks may be beyond its end."""
        self.errors: list[str] = []
        self._watch()
        self.task = asyncio.create_task(self._run(), name=f"reader {consumer.tp}")

    def _watch(self) -> None:
        consumer, partition = self.consumer, self.consumer._inner
        connect_offsets(consumer, self.offsets)
        listener = partition.listener
        mark_on_reset, mark_on_restart, mark_on_passed = (
            listener.on_reset,
            listener.on_restart,
            listener.on_skipped_range,
        )

        def on_reset(offset: int, log_end: int) -> None:
            # if the start of the log was deleted, buffered records are delivered first
            self.floor = min(self.floor, offset) if consumer.buffered_bytes else offset
            mark_on_reset(offset, log_end)

        def on_restart(offset: int, topic_id: UUID) -> None:
            self.floor = min(self.floor, offset)
            if topic_id != NO_UUID:
                self.history.excused.clear()
            mark_on_restart(offset, topic_id)

        def on_skipped_range(start: int, end: int, epoch: int) -> None:
            self._check_empty(start, end, "skipped")
            mark_on_passed(start, end, epoch)

        listener.on_reset, listener.on_restart, listener.on_skipped_range = (  # type: ignore[method-assign]
            on_reset,
            on_restart,
            on_skipped_range,
        )

    # --- invariants ---------------------------------------------------------------------------------------------

    def _check_empty(self, start: int, end: int, what: str) -> None:
        """Check that every offset from `start` up to `end` had no record to deliver at some time."""
        tp = self.history.tp
        log_start = self.logs.partition_of(tp).log.start_offset if tp in self.logs.partitions else 1 << 60
        missed = [
            offset
            for offset in range(max(start, log_start), end)
            if offset not in self.logs.empty[tp] and offset not in self.history.excused
        ]
        if missed:
            self.errors.append(f"{self.consumer}: {what} {missed} on the way from {start} to {end}")

    def _check(self, records: Iterable[Record]) -> None:
        for record in records:
            offset, value = record.offset, record.value
            assert value is not None
            if offset < self.floor:
                self.errors.append(f"{self.consumer}: {offset} is below {self.floor}")
            self._check_empty(self.floor, offset, "omitted")
            if value not in self.logs.written[self.history.tp][offset]:
                self.errors.append(f"{self.consumer}: {value!r} at {offset} was never written")
            if self.consumer._committed_only and value not in self.logs.committed_values:
                self.errors.append(f"{self.consumer}: {value!r} at {offset} was not committed")
            self.floor = offset + 1
            self.history.seen.add(value)
            self.history.count += 1

    # --- how it reads -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        consumer, rng = self.consumer, self.rng
        batches = consumer.batches(max_records=7)
        patient = consumer.batches(max_records=30, max_bytes=3000, max_wait=0.3)
        while not consumer.ended:
            try:
                await self._read_once(rng.choice([batches, patient, None, None]))
            except StopAsyncIteration:
                return
            except AsyncGroupError:
                continue
            await self._pause_randomly()

    async def _read_once(self, batches: object) -> None:
        limit = self.rng.choice([0.001, 0.05, 1.0]) if self.rng.random() < 0.2 else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                if batches is not None:
                    batch = await anext(batches)  # type: ignore[call-overload]
                    self._check(batch)
                    self._mark(batch.last_offset, batch.leader_epoch)
                else:
                    record = await anext(self.consumer)
                    self._check([record])
                    self._mark(record.offset, record.leader_epoch)

    def _mark(self, offset: int, leader_epoch: int) -> None:
        if self.is_calm or self.rng.random() < 0.7:
            self.offsets.advance(offset + 1, "", leader_epoch)

    async def _pause_randomly(self) -> None:
        chance = self.rng.random()
        if not self.is_calm and chance < 0.1:
            await asyncio.sleep(self.rng.uniform(0, 0.5))
        elif not self.is_calm and chance < 0.105:
            await asyncio.sleep(self.rng.uniform(2, 8))
        else:
            self._seek_randomly(chance)

    def _seek_randomly(self, chance: float) -> None:
        if self.is_calm or chance < 0.98 or self.history.tp not in self.logs.partitions:
            return
        log = self.logs.partition_of(self.history.tp).log
        position = self.consumer.position
        target = self.rng.choice(
            [position, self.rng.randint(log.start_offset, max(position, log.start_offset))]
        )
        # truncated and replaced records cannot be detected any more: the offset of a seek has no epoch
        _, end = log.end_offset_for_epoch(self.consumer._inner.fetched_epoch)
        self.history.excused.update(range(position if end < 0 else min(position, end), target))
        if self.consumer._inner.fetch_source.topic_id not in (
            NO_UUID,
            self.logs.topic_id(self.history.tp),
        ):
            # the topic was recreated, which the reader has not learned yet: the offset of a seek applies to any topic
            self.history.excused.update(range(target))
        self.floor = target
        self.consumer.seek(target)
