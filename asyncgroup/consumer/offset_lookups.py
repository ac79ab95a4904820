"""Offset lookups of the public Consumer: argument checks, retries, and an error for each partition that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from asyncgroup.checks import check_topic
from asyncgroup.cluster import ClusterClient
from asyncgroup.consumer.list_offsets import Isolation, ListedOffset, is_retriable_error, list_offsets_once
from asyncgroup.consumer.resets import parse_start, wall_clock
from asyncgroup.errors import AsyncGroupError, BrokerError, ConfigError, ErrorCode, OffsetLookupError
from asyncgroup.model import TopicPartition

__all__ = ["OffsetAndTimestamp", "look_up_offsets", "partitions_of", "timestamps_of"]

_log = logging.getLogger("asyncgroup.consumer")

_PARTITION: Final = 'as ("orders", 0)'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time; Java's class of the same name."""

    offset: int
    timestamp: int
    """In ms since 1970."""
    leader_epoch: int = -1
    """The leader epoch of the record's batch; -1 if unknown."""

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime in UTC."""
        return _EPOCH + timedelta(milliseconds=self.timestamp)


def partitions_of(partitions: object) -> list[TopicPartition]:
    """Return the partitions, each once; raise ConfigError for values that are not partitions, and for invalid topics."""
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise ConfigError("partitions", partitions, f"several partitions {_PARTITION}")
    wanted = dict.fromkeys(_partition_of(place) for place in partitions)
    for topic in {tp.topic for tp in wanted}:
        check_topic(topic)
    return list(wanted)


def _partition_of(place: object) -> TopicPartition:
    """Return a topic's name and a partition's number as a TopicPartition; raise ConfigError for other values."""
    match place:
        case (str() as topic, int() as number) if 0 <= number < 1 << 31:
            return TopicPartition(topic, number)
    raise ConfigError("partition", place, f"a partition {_PARTITION}")


def timestamps_of(
    times: Mapping[TopicPartition | tuple[str, int], datetime | int],
) -> dict[TopicPartition, int]:
    """Return each partition's time in ms since 1970; raise ConfigError for other values and for naive datetimes."""
    found = {}
    for place, when in times.items():
        tp = _partition_of(place)
        if isinstance(when, datetime) and when.utcoffset() is not None:
            timestamp = parse_start(when, wall_clock).timestamp
        else:
            timestamp = when if isinstance(when, int) and not isinstance(when, bool) and when >= 0 else None
        if timestamp is None:
            allowed = "a datetime with a time zone, or ms since 1970 (0 or more)"
            raise ConfigError(f"the time of {tp}", when, allowed)
        found[tp] = timestamp
    return found


async def look_up_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> dict[TopicPartition, ListedOffset]:
    """Look up each partition at `EARLIEST`, `LATEST` or a timestamp in ms; the offset is -1 without such a record.

    `isolation` decides where logs end. Retriable errors are retried `metadata_retry_max` times.
    Raises OffsetLookupError with an error for each partition that failed, TransportError if no broker answers.
    """
    found: dict[TopicPartition, ListedOffset] = {}
    final: dict[TopicPartition, AsyncGroupError] = {}  # errors that are not retriable
    left, backoff = dict(wanted), cluster.backoff()
    topics = sorted({tp.topic for tp in wanted})
    with cluster.tracking(topics):
        if any(cluster.view.leader(tp) < 0 for tp in left):
            await cluster.refresh()
        while left:
            answer = await list_offsets_once(cluster, left, isolation, or_end=False)
            found |= answer.listed
            problems = {tp: _problem(cluster, tp, error) for tp, error in answer.problems.items()}
            final |= {tp: error for tp, error in problems.items() if not is_retriable_error(error)}
            left = {tp: wanted[tp] for tp in problems if tp not in final}
            if left and backoff.failures >= cluster.config.metadata_retry_max:
                raise OffsetLookupError(final | problems)
            if left:
                await asyncio.sleep(backoff.next())
                await _refresh(cluster)
    if final:
        raise OffsetLookupError(final)
    return found


def _problem(cluster: ClusterClient, tp: TopicPartition, error: AsyncGroupError) -> AsyncGroupError:
    """Return the error to report for a partition: without a leader, the metadata may show that it does not exist."""
    if cluster.view.leader(tp) >= 0:
        return error
    topic = cluster.view.topics.get(tp.topic)
    if topic is not None and topic.error_code:
        return BrokerError(topic.error_code, f"offset of {tp}")
    if topic is None or tp.partition not in topic.partitions:
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offset of {tp}", "it does not exist")
    return error


async def _refresh(cluster: ClusterClient) -> None:
    try:
        await cluster.refresh()
    except AsyncGroupError as error:
        _log.debug("metadata refresh failed: %s", error)
