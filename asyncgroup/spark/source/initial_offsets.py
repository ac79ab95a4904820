"""Resolve the starting offsets of a query, and the ending offsets of a batch query, from its options.

Like Spark's `KafkaOffsetReaderAdmin`, and in addition from a group's committed offsets, which Spark's source cannot use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, Protocol, TypeAlias

from asyncgroup.consumer.list_offsets import EARLIEST, LATEST
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.settings import (
    AtTimestamp,
    ByTimestamp,
    Earliest,
    FromGroup,
    Latest,
    OffsetLimit,
    Specific,
)

__all__ = ["OffsetLookups", "is_reproducible", "may_start_at_end", "resolve_offsets"]

Offsets: TypeAlias = dict[TopicPartition, int]

Position: TypeAlias = Literal["start", "end"]

NO_MATCH: Final = -1
"""The offset that brokers return for a timestamp after the last record."""


class OffsetLookups(Protocol):
    """The broker requests needed for that; implemented by `BrokerLookups`."""

    async def assigned(self) -> Iterable[TopicPartition]:
        """Return the partitions to read."""

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Return the offsets at `EARLIEST` or `LATEST`."""

    async def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Return the offsets at timestamps (ms), `NO_MATCH` if there is none."""

    async def committed(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the group's committed offsets; partitions without one are left out."""


async def resolve_offsets(
    limit: OffsetLimit, lookups: OffsetLookups, *, position: Position, group_id: str | None
) -> Offsets:
    """Return the offset of each partition to read. Raises SourceError if `limit` cannot be applied to them."""
    partitions = sorted(await lookups.assigned())
    if isinstance(limit, Earliest):
        return await lookups.list_offsets(dict.fromkeys(partitions, EARLIEST))
    if isinstance(limit, Latest):
        return await lookups.list_offsets(dict.fromkeys(partitions, LATEST))
    if isinstance(limit, Specific):
        topics = {tp.topic for tp in partitions}
        if limit.topics.keys() - topics:
            raise errors.topic_offsets_do_not_match_assigned(limit.topics.keys() - topics, topics)
        named = limit.resolve(partitions)
        if named.keys() != set(partitions):
            raise errors.start_offsets_do_not_match_assigned(named, partitions)
        return await _with_ends(named, lookups)
    if isinstance(limit, FromGroup):
        return await _from_group(limit, lookups, partitions, group_id or "")
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


async def _with_ends(offsets: Mapping[TopicPartition, int], lookups: OffsetLookups) -> Offsets:
    """Return `offsets` with -1 and -2 replaced by the log's end and start; ListOffsets uses the same two numbers."""
    named = {tp: offset for tp, offset in offsets.items() if offset in (EARLIEST, LATEST)}
    return {**offsets, **await lookups.list_offsets(named)} if named else dict(offsets)


async def _from_group(
    limit: FromGroup, lookups: OffsetLookups, partitions: list[TopicPartition], group_id: str
) -> Offsets:
    committed = await lookups.committed(partitions)
    missing = [tp for tp in partitions if tp not in committed]
    if not missing:
        return committed
    if limit.fallback == "error":
        raise errors.no_committed_offset(group_id, missing)
    spec = EARLIEST if limit.fallback == "earliest" else LATEST
    return committed | await lookups.list_offsets(dict.fromkeys(missing, spec))


async def _by_time(
    limit: ByTimestamp | AtTimestamp,
    lookups: OffsetLookups,
    partitions: list[TopicPartition],
    position: Position,
) -> Offsets:
    if isinstance(limit, ByTimestamp):
        if limit.timestamps.keys() != set(partitions):
            raise errors.timestamps_do_not_match_assigned(position, limit.timestamps, partitions)
        wanted = dict(limit.timestamps)
    else:
        wanted = dict.fromkeys(partitions, limit.timestamp)
    found = await lookups.offsets_for_times(wanted)
    late = [tp for tp, offset in found.items() if offset == NO_MATCH]
    if late and position == "start" and limit.on_no_match == "error":
        raise errors.no_offset_at_timestamp({tp: wanted[tp] for tp in late})
    return found | await lookups.list_offsets(dict.fromkeys(late, LATEST)) if late else found
