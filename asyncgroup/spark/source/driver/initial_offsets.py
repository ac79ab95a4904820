"""Resolve the starting offsets of a query, and the ranges of a batch query, from its options.

Like Spark's `KafkaOffsetReaderAdmin`, and in addition from a group's committed offsets, which Spark's source cannot use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.broker_lookups import BrokerLookups
from asyncgroup.spark.source.errors import SourceArgumentError, SourceError
from asyncgroup.spark.source.options.settings import (
    AtTimestamp,
    ByTimestamp,
    Earliest,
    FromGroup,
    Latest,
    OffsetLimit,
    ReadSettings,
    Specific,
    TopicIds,
)

__all__ = ["find_batch_ranges", "is_reproducible", "may_start_at_end", "resolve_offsets"]

Offsets: TypeAlias = dict[TopicPartition, int]

Position: TypeAlias = Literal["start", "end"]

NO_MATCH: Final = -1
"""The offset that brokers return for a timestamp after the last record."""


async def find_batch_ranges(
    settings: ReadSettings, lookups: BrokerLookups
) -> tuple[list[OffsetRange], TopicIds]:
    """Return the ranges that a batch query reads, and the topic ids of their partitions. Raises SourceError."""
    group_id = settings.group_id
    start = await resolve_offsets(settings.starting, lookups, position="start", group_id=group_id)
    # if a topic is recreated from here on, start and end belong to different logs, and tasks refuse to read the range
    topic_ids = lookups.topic_ids
    end = await resolve_offsets(settings.ending, lookups, position="end", group_id=group_id)
    return _ranges_between(start, end), topic_ids


def _ranges_between(start: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> list[OffsetRange]:
    """Return the range of each partition; raise SourceError if one ends before it starts, or lacks a start or end."""
    if start.keys() != end.keys():
        raise SourceArgumentError(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            tpsForStartOffset=start.keys(),
            tpsForEndOffset=end.keys(),
        )
    for tp, first in sorted(start.items()):
        if first > end[tp]:
            raise SourceError(
                "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
                startOffset=first,
                endOffset=end[tp],
                topic=tp.topic,
                partition=tp.partition,
            )
    return [OffsetRange(tp.topic, tp.partition, start[tp], end[tp]) for tp in sorted(start)]


async def resolve_offsets(
    limit: OffsetLimit,
    lookups: BrokerLookups,
    *,
    position: Position,
    group_id: str | None,
    may_defer: bool = False,
) -> Offsets:
    """Return the offset of each partition to read. Raises SourceError if `limit` cannot be applied to them.

    If it `may_defer`, the start of a log that is not available is `EARLIEST`, to be looked up later: it will be the same one,
    apart from records deleted by retention. Ends, and offsets by time, are waited for: later ones would skip records.
    """
    partitions = sorted(await lookups.assigned())
    if isinstance(limit, Earliest):
        return await _log_starts(partitions, lookups, may_defer=may_defer)
    if isinstance(limit, Latest):
        return await lookups.list_offsets(dict.fromkeys(partitions, LATEST))
    if isinstance(limit, Specific):
        topics = {tp.topic for tp in partitions}
        if limit.topics.keys() - topics:
            raise SourceArgumentError(
                "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED",
                unmatchedTopics=limit.topics.keys() - topics,
                assignedTopics=topics,
            )
        named = limit.resolve(partitions)
        if named.keys() != set(partitions):
            raise SourceArgumentError(
                "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
                specifiedPartitions=named.keys(),
                assignedPartitions=partitions,
            )
        return await _with_ends(named, lookups, may_defer=may_defer)
    if isinstance(limit, FromGroup):
        return await _from_group(limit, lookups, partitions, group_id or "", may_defer=may_defer)
    return await _by_time(limit, lookups, partitions, position)


def is_reproducible(limit: OffsetLimit) -> bool:
    """Return whether another process would resolve the same start later, apart from records deleted by retention."""
    if isinstance(limit, Specific):
        return LATEST not in (*limit.offsets.values(), *limit.topics.values())
    return isinstance(limit, Earliest)


def may_start_at_end(limit: OffsetLimit, tp: TopicPartition) -> bool:
    """Return whether a partition's start may be the end of the log at the time of the lookup."""
    if isinstance(limit, Specific):
        return limit.resolve([tp]).get(tp) == LATEST
    return not isinstance(limit, Earliest)


async def _log_starts(
    partitions: Iterable[TopicPartition], lookups: BrokerLookups, *, may_defer: bool
) -> Offsets:
    wanted = dict.fromkeys(partitions, EARLIEST)
    if not may_defer:
        return await lookups.list_offsets(wanted)
    found = await lookups.list_available_offsets(wanted)
    return {tp: found.get(tp, EARLIEST) for tp in wanted if tp in found or tp in lookups.topic_ids}


async def _with_ends(
    offsets: Mapping[TopicPartition, int], lookups: BrokerLookups, *, may_defer: bool
) -> Offsets:
    """Return `offsets` with -1 and -2 replaced by the log's end and start; ListOffsets uses the same two numbers."""
    ends = {tp: offset for tp, offset in offsets.items() if offset == LATEST}
    starts = [tp for tp, offset in offsets.items() if offset == EARLIEST]
    found = dict(offsets)
    if ends:
        found |= await lookups.list_offsets(ends)
    if starts:
        found |= await _log_starts(starts, lookups, may_defer=may_defer)
    return found


async def _from_group(
    limit: FromGroup,
    lookups: BrokerLookups,
    partitions: list[TopicPartition],
    group_id: str,
    *,
    may_defer: bool,
) -> Offsets:
    committed = await lookups.committed(partitions)
    missing = [tp for tp in partitions if tp not in committed]
    if not missing:
        return committed
    if limit.fallback == "error":
        raise SourceError("ASYNCGROUP_NO_COMMITTED_OFFSET", groupId=group_id, partitions=missing)
    if limit.fallback == "earliest":
        return committed | await _log_starts(missing, lookups, may_defer=may_defer)
    return committed | await lookups.list_offsets(dict.fromkeys(missing, LATEST))


async def _by_time(
    limit: ByTimestamp | AtTimestamp,
    lookups: BrokerLookups,
    partitions: list[TopicPartition],
    position: Position,
) -> Offsets:
    if isinstance(limit, ByTimestamp):
        if limit.timestamps.keys() != set(partitions):
            raise SourceArgumentError(
                "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
                position=position,
                specifiedPartitions=limit.timestamps.keys(),
                assignedPartitions=partitions,
            )
        wanted = dict(limit.timestamps)
    else:
        wanted = dict.fromkeys(partitions, limit.timestamp)
    found = await lookups.list_offsets(wanted, or_end=False)
    late = [tp for tp, offset in found.items() if offset == NO_MATCH]
    if late and position == "start" and limit.on_no_match == "error":
        raise SourceArgumentError(
            "ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP", timestamps={tp: wanted[tp] for tp in late}
        )
    return found | await lookups.list_offsets(dict.fromkeys(late, LATEST)) if late else found
