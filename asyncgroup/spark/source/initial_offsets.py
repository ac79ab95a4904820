"""Where a query starts and, if it is a batch, ends: what the options say becomes offsets.

As in Spark's `KafkaOffsetReaderAdmin`, and from what a group has committed, which Spark's source cannot do.
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
"""What brokers answer for a timestamp behind the last record."""


class OffsetLookups(Protocol):
    """What has to be asked for that (`BrokerLookups`)."""

    async def assigned(self) -> Iterable[TopicPartition]:
        """The partitions to read."""

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Offsets at `EARLIEST` or `LATEST`."""

    async def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Offsets at timestamps (ms), `NO_MATCH` where there is none."""

    async def committed(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """What the group has committed; partitions without a commit are left out."""


async def resolve_offsets(
    limit: OffsetLimit, lookups: OffsetLookups, *, position: Position, group_id: str | None
) -> Offsets:
    """The offset of each partition to read. Raises SourceError for what does not fit, and what `lookups` raises."""
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
    """Whether another process would find the same start a moment later, but for what retention takes away."""
    if isinstance(limit, Specific):
        return LATEST not in (*limit.offsets.values(), *limit.topics.values())
    return isinstance(limit, Earliest)


def may_start_at_end(limit: OffsetLimit, tp: TopicPartition) -> bool:
    """Whether the start of a partition may be the log's end of the moment at which it is looked up."""
    if isinstance(limit, Specific):
        return limit.resolve([tp]).get(tp) == LATEST
    return not isinstance(limit, Earliest)


async def _with_ends(offsets: Mapping[TopicPartition, int], lookups: OffsetLookups) -> Offsets:
    """`offsets` with numbers for -1 and -2, which Kafka's protocol happens to ask by the same."""
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
