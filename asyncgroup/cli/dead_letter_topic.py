"""Read a dead letter topic without a group, from its beginning to its end, and describe its records."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncgroup.errors import UsageError
from asyncgroup.model import Record, TopicPartition

if TYPE_CHECKING:
    from asyncgroup.consumer import Consumer

__all__ = [
    "OffsetSpan",
    "having",
    "log_spans",
    "parse_spans",
    "place",
    "read_one",
    "read_span",
    "read_topic",
    "spans_within",
]

QUIET_INTERVAL: Final = 0.1
"""Seconds without a record after which the position is checked: the last offsets may belong to markers of transactions."""

_SPAN: Final = re.compile(r"([0-9]{1,10})@([0-9]{1,19})(?:-([0-9]{1,19}))?")


class OffsetSpan(NamedTuple):
    """Offsets of one partition, from `start` to the one before `end`."""

    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        last = "" if self.end == self.start + 1 else f"-{self.end - 1}"
        return f"{self.partition}@{self.start}{last}"

    def contents(self) -> str:
        """Return what a log with this span has: `has offsets 3 to 8`, or `is empty`."""
        if self.end <= self.start:
            return "is empty"
        return (
            f"has offset {self.start}"
            if self.end == self.start + 1
            else f"has offsets {self.start} to {self.end - 1}"
        )


def parse_spans(text: str) -> list[OffsetSpan]:
    """Return the spans of a text such as `0@17,1@3-8`. Raises ValueError that says what is expected."""
    spans = []
    for part in text.split(","):
        matched = _SPAN.fullmatch(part.strip())
        if matched is None:
            raise ValueError(f"{part!r} is not PARTITION@OFFSET or PARTITION@FIRST-LAST")
        partition, first = int(matched[1]), int(matched[2])
        last = first if matched[3] is None else int(matched[3])
        if last < first:
            raise ValueError(f"{part!r}: the last offset is before the first one")
        spans.append(OffsetSpan(partition, first, last + 1))
    return spans


def place(record: Record) -> str:
    """Return `topic-partition@offset`; of a value in chunks the offset of the first one, from which it can be read."""
    return f"{record.topic}-{record.partition}@{record.first_offset}"


# --- reading ----------------------------------------------------------------------------------------------------------


async def log_spans(
    consumer: Consumer, topic: str, partitions: Iterable[int] | None = None
) -> dict[int, OffsetSpan]:
    """Return the offsets of each partition's log now, up to the high watermark (or the last stable offset).

    Of all partitions without `partitions`. Raises BrokerError for an unknown topic, OffsetLookupError, TransportError.
    """
    numbers = await consumer.partitions(topic) if partitions is None else partitions
    tps = [TopicPartition(topic, number) for number in numbers]
    starts, ends = await asyncio.gather(consumer.beginning_offsets(tps), consumer.end_offsets(tps))
    return {tp.partition: OffsetSpan(tp.partition, starts[tp], ends[tp]) for tp in sorted(tps)}


def spans_within(topic: str, log: Mapping[int, OffsetSpan], wanted: Iterable[OffsetSpan]) -> list[OffsetSpan]:
    """Return the spans in order, without overlaps. Raises UsageError for one that is not in the log."""
    merged: list[OffsetSpan] = []
    for span in sorted(wanted):
        _check_in_log(topic, log, span)
        if merged and merged[-1].partition == span.partition and span.start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def _check_in_log(topic: str, log: Mapping[int, OffsetSpan], span: OffsetSpan) -> None:
    if span.partition not in log:
        raise UsageError(f"{topic}-{span}: there is no partition {span.partition}; {topic} {having(log)}")
    has = log[span.partition]
    if span.start < has.start or span.end > has.end:
        raise UsageError(f"{topic}-{span}: no such offset; {topic}-{span.partition} {has.contents()}")


def having(partitions: Collection[int]) -> str:
    """Return what a topic with these partitions has: `has partitions 0 to 5`."""
    return "has partition 0" if len(partitions) == 1 else f"has partitions 0 to {max(partitions)}"


async def read_span(consumer: Consumer, topic: str, span: OffsetSpan) -> AsyncGenerator[Record, None]:
    """Yield the records of a span in offset order. Close the iterator, as with `aclosing`, if it is left early.

    Raises as the iterator of `PartitionConsumer`.
    """
    if span.start >= span.end:
        return
    reader = await consumer.partition(topic, span.partition, span.start)
    batches = reader.batches()
    try:
        while reader.position < span.end:
            try:
                async with asyncio.timeout(QUIET_INTERVAL):
                    batch = await anext(batches)
            except TimeoutError:
                continue  # the position moves over markers of transactions without a record
            for record in batch:
                if record.first_offset >= span.end:
                    return
                yield record
    finally:
        await reader.aclose()


async def read_topic(
    consumer: Consumer, topic: str, spans: Iterable[OffsetSpan]
) -> AsyncGenerator[Record, None]:
    """Yield the records of several spans, one span after another; as `read_span`."""
    for span in spans:
        async with aclosing(read_span(consumer, topic, span)) as records:
            async for record in records:
                yield record


async def read_one(consumer: Consumer, topic: str, span: OffsetSpan) -> Record:
    """Return the record at the start of `span`. Raises UsageError if there is none, and as `read_span`."""
    has = await log_spans(consumer, topic)
    _check_in_log(topic, has, span)
    rest = span._replace(end=has[span.partition].end)
    async with aclosing(read_span(consumer, topic, rest)) as records:
        async for record in records:
            if record.first_offset == span.start:
                return record
            raise UsageError(
                f"{topic}-{span}: no record has this offset (it was compacted, or is a marker of a transaction); "
                f"the next one is {span.partition}@{record.first_offset}"
            )
    raise UsageError(f"{topic}-{span}: no record has this offset, and none follows")
