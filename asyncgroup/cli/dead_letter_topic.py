"""Read records of a dead letter topic without a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.offset_spans import OffsetSpan, check_in_log, log_spans
from asyncgroup.errors import UsageError
from asyncgroup.model import Record

if TYPE_CHECKING:
    from asyncgroup.consumer import Consumer

__all__ = ["place", "read_one", "read_span", "read_topic"]

QUIET_INTERVAL: Final = 0.1
"""Seconds without a record after which the position is checked: the last offsets may belong to markers of transactions."""


def place(record: Record) -> str:
    """Return `topic-partition@offset`; of a value in chunks the offset of the first one, from which it can be read."""
    return f"{record.topic}-{record.partition}@{record.first_offset}"


# --- reading ----------------------------------------------------------------------------------------------------------


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
    check_in_log(topic, has, span)
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
