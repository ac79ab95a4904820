"""`asyncgroup dlq replay`: write dead letters to their origin topics again.

A first pass over the dead letter topic makes the plan and checks it, the second one writes: the records are not kept in
memory, and nothing is written if a record of the plan cannot be. Records are written one after another, each after the
acknowledgement of the one before, so that after a failure it is known which ones are done.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from asyncgroup.checks import is_legal_name
from asyncgroup.cli.client_configs import client_config
from asyncgroup.cli.common import stop_signals
from asyncgroup.cli.connection_options import connection_options
from asyncgroup.cli.dead_letter_rows import DeadLetterRow
from asyncgroup.cli.dead_letter_topic import place, read_topic
from asyncgroup.cli.offset_spans import OffsetSpan, log_spans, spans_within
from asyncgroup.cli.replaying import (
    ReplayProgress,
    ReplayStep,
    ReplayStopped,
    check_replay_options,
    exit_code_before_writing,
    gone_since_the_plan,
    not_written,
)
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.consumer import Consumer
from asyncgroup.errors import AsyncGroupError, CommitFailedError, UsageError
from asyncgroup.escaping import printable
from asyncgroup.model import Header, Record
from asyncgroup.offsets import OffsetManager, PartitionOffsets
from asyncgroup.producer import Producer
from asyncgroup.workqueue.copies import user_headers

__all__ = ["PlannedRecord", "Replayer", "replay"]


class PlannedRecord(NamedTuple):
    """A dead letter, and where it is written."""

    partition: int
    offset: int
    """Of the dead letter topic."""
    topic: str
    """The topic to write to."""
    to_partition: int | None
    """The partition that the record came from; None if it is unknown: then the key determines the partition."""

    @property
    def target(self) -> str:
        """The topic to write to, with its partition if that is known."""
        return self.topic if self.to_partition is None else f"{self.topic}-{self.to_partition}"


async def replay(options: argparse.Namespace, config: ConsumerConfig) -> int:
    """Send dead letters back; return 0 if all of them were written.

    Raises UsageError for records that cannot be sent back, before anything is written; ReplayStopped; BrokerError for an
    unknown topic; and as the iterator of `PartitionConsumer`.
    """
    check_replay_options(options, to_itself=options.to == options.topic)
    servers = connection_options(options).require_servers(options.usage)
    async with Consumer(servers, config) as consumer:
        log = await log_spans(consumer, options.topic)
        async with _positions(options, consumer, list(log)) as positions:
            spans = _spans_to_read(options, log, positions)
            plan = await _plan(options, consumer, spans)
            steps = [
                ReplayStep(f"{options.topic}-{each.partition}@{each.offset}", each.topic, each.target)
                for each in plan
            ]
            if (code := await exit_code_before_writing(options, steps)) is not None:
                return code
            return await _write(options, consumer, spans, plan, positions)


# --- the plan ---------------------------------------------------------------------------------------------------------


def _spans_to_read(
    options: argparse.Namespace, log: Mapping[int, OffsetSpan], positions: Positions | None
) -> list[OffsetSpan]:
    """Return the offsets to read: those of --offsets, or all after the group's position."""
    if options.offsets:
        return spans_within(options.topic, log, options.offsets)
    if positions is None:
        return list(log.values())
    return [
        span._replace(start=max(span.start, positions.next_offset(span.partition))) for span in log.values()
    ]


async def _plan(
    options: argparse.Namespace, consumer: Consumer, spans: Sequence[OffsetSpan]
) -> list[PlannedRecord]:
    """Read the dead letters, and return where each is written. Raises UsageError for one that cannot be."""
    plan = []
    missing = set(options.offsets or ())
    async with aclosing(read_topic(consumer, options.topic, spans)) as records:
        async for record in records:
            missing = {span for span in missing if not _contains(span, record)}
            row = DeadLetterRow.of(record)
            if options.match is None or options.match in (row.reason or ""):
                plan.append(_planned(record, row, options.topic, options.to))
    if missing:
        text = ", ".join(str(span) for span in sorted(missing))
        raise UsageError(
            f"{options.topic}: no record has the offset {text} (compacted, or a marker of a transaction)"
        )
    return await _with_existing_partitions(options.topic, consumer, plan)


def _contains(span: OffsetSpan, record: Record) -> bool:
    return span.partition == record.partition and span.start <= record.first_offset < span.end


def _planned(record: Record, row: DeadLetterRow, topic: str, to: str | None) -> PlannedRecord:
    if to is not None:
        return PlannedRecord(record.partition, record.first_offset, to, None)
    hint = "choose a topic with --to, or other records with --offsets or --match"
    if row.origin_topic is None:
        raise UsageError(f"{place(record)} has no header with its origin topic: {hint}")
    if not is_legal_name(row.origin_topic) or row.origin_topic == topic:
        name = printable(row.origin_topic, 260)
        raise UsageError(f"{place(record)} has the origin topic {name!r}, which it cannot be sent to: {hint}")
    return PlannedRecord(record.partition, record.first_offset, row.origin_topic, row.origin_partition)


async def _with_existing_partitions(
    topic: str, consumer: Consumer, plan: Sequence[PlannedRecord]
) -> list[PlannedRecord]:
    """Check that the topics exist; records whose partitions do not exist have none."""
    found: dict[str, set[int]] = {}
    for planned in plan:
        if planned.topic not in found:
            try:
                found[planned.topic] = set(await consumer.partitions(planned.topic))
            except AsyncGroupError as error:
                dead_letter = f"{topic}-{planned.partition}@{planned.offset}"
                raise UsageError(f"{dead_letter} cannot be sent to {planned.topic}: {error}") from error
    return [
        each if each.to_partition in found[each.topic] else each._replace(to_partition=None) for each in plan
    ]


# --- the position of --group ------------------------------------------------------------------------------------------


class Positions:
    """The committed offsets of a group: the dead letters before them have been replayed."""

    def __init__(self, manager: OffsetManager, offsets: Mapping[int, PartitionOffsets]) -> None:
        self._manager = manager
        self._offsets = offsets
        self._is_accepted = False  # whether the group has accepted a commit

    def next_offset(self, partition: int) -> int:
        """Return the offset after the last record that was replayed; -1 if there is none."""
        return self._offsets[partition].next_offset

    async def record_written(self, record: Record) -> None:
        """Mark a record. The first one is committed at once: a group with members refuses commits.

        Raises CommitFailedError. Later marks are committed by the OffsetManager.
        """
        self._offsets[record.partition].mark_record(record)
        if not self._is_accepted:
            await self._manager.commit()
            self._is_accepted = True

    async def finish(self, spans: Sequence[OffsetSpan]) -> None:
        """Commit the ends of all spans. Raises CommitFailedError."""
        for span in spans:
            if span.end > span.start:
                self._offsets[span.partition].mark_offset(span.end)
        await self._manager.commit()


@asynccontextmanager
async def _positions(
    options: argparse.Namespace, consumer: Consumer, partitions: Sequence[int]
) -> AsyncIterator[Positions | None]:
    if options.group is None:
        yield None
        return
    config = client_config(options, ConsumerConfig, {"auto_commit": True})
    async with OffsetManager(consumer.cluster, options.group, config) as manager:
        managed = await manager.manage_all([(options.topic, partition) for partition in partitions])
        yield Positions(manager, {tp.partition: offsets for tp, offsets in managed.items()})


# --- writing ----------------------------------------------------------------------------------------------------------


class Replayer:
    """Writes planned records one after another, and keeps the last one that is written."""

    def __init__(
        self, producer: Producer, plan: Sequence[PlannedRecord], positions: Positions | None
    ) -> None:
        self._producer = producer
        self._planned = {(each.partition, each.offset): each for each in plan}
        self._positions = positions
        self.progress = ReplayProgress(len(plan))

    async def write(self, record: Record) -> None:
        """Write a record if it is in the plan, and print where it is. Raises ReplayStopped, BrokenPipeError."""
        planned = self._planned.get((record.partition, record.first_offset))
        if planned is None:
            return
        try:
            where = await self._producer.send(
                planned.topic,
                record.value,
                key=record.key,
                headers=_headers(record),
                partition=planned.to_partition,
                timestamp=record.timestamp if record.timestamp >= 0 else None,
            )
        except AsyncGroupError as error:
            raise not_written(place(record), planned.target, error) from error
        self.progress.done(place(record), f"{where.topic}-{where.partition}@{where.offset}")
        if self._positions is not None:
            try:
                await self._positions.record_written(record)
            except CommitFailedError as error:
                raise ReplayStopped(f"{place(record)} was written, but not committed: {error}") from error


def _headers(record: Record) -> list[Header]:
    """Return the headers without those of retries and dead letters: also later ones of KIP-1191."""
    return [header for header in user_headers(record) if not header[0].startswith("__dlq.")]


async def _write(
    options: argparse.Namespace,
    consumer: Consumer,
    spans: Sequence[OffsetSpan],
    plan: Sequence[PlannedRecord],
    positions: Positions | None,
) -> int:
    keys = {"enable_idempotence": True, "acks": "all", "transactional_id": None, "chunking": True}
    config = client_config(options, ProducerConfig, keys, client_id="asyncgroup-dlq")
    with stop_signals() as stop:
        async with Producer(consumer.cluster, config) as producer:
            replayer = Replayer(producer, plan, positions)
            try:
                async with aclosing(read_topic(consumer, options.topic, spans)) as records:
                    async for record in records:
                        await replayer.write(record)
                        if stop.is_set():
                            return stop.exit_code
                if positions is not None:
                    await positions.finish(spans)
            finally:
                replayer.progress.report()
    if replayer.progress.written < len(plan):  # the log was cut between the two passes
        raise gone_since_the_plan(options.topic, len(plan) - replayer.progress.written)
    return 0
