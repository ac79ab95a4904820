"""Spans of offsets in the partitions of a topic: as arguments, and those of the logs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncgroup.errors import UsageError
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.consumer import Consumer

__all__ = ["OffsetSpan", "check_in_log", "having", "log_spans", "parse_spans", "spans_within"]

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
        check_in_log(topic, log, span)
        if merged and merged[-1].partition == span.partition and span.start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def check_in_log(topic: str, log: Mapping[int, OffsetSpan], span: OffsetSpan) -> None:
    """Raise UsageError for a span that is not in the log."""
    if span.partition not in log:
        raise UsageError(f"{topic}-{span}: there is no partition {span.partition}; {topic} {having(log)}")
    has = log[span.partition]
    if span.start < has.start or span.end > has.end:
        raise UsageError(f"{topic}-{span}: no such offset; {topic}-{span.partition} {has.contents()}")


def having(partitions: Collection[int]) -> str:
    """Return what a topic with these partitions has: `has partitions 0 to 5`."""
    return "has partition 0" if len(partitions) == 1 else f"has partitions 0 to {max(partitions)}"
