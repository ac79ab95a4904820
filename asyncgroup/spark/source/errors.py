"""Errors of the source, with the stable codes of Spark's own Kafka source (`kafka-error-conditions.json`).

An exception that leaves a Python data source becomes text in the JVM: its type and attributes are lost. So the text begins
with the code, in the way Spark prints its error conditions:

    [KAFKA_DATA_LOSS.PARTITIONS_DELETED] The partitions … SQLSTATE: 22000

Codes and parameters are Spark's, the texts are not. Codes that Spark does not have begin with `ASYNCGROUP_`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.conditions import CONDITIONS, DATA_LOSS

__all__ = [
    "DataLossError",
    "OptionError",
    "SourceArgumentError",
    "SourceError",
    "added_partition_does_not_start_from_zero",
    "brokers_unreachable",
    "commit_failed",
    "could_not_read_offset_range",
    "end_offset_beyond_latest",
    "end_offset_beyond_prefetched",
    "group_in_use",
    "group_lacks_offsets",
    "initial_offset_not_found",
    "lost_partitions_with_available_now",
    "malformed_timestamp",
    "mismatched_partitions_with_prefetched",
    "mismatched_start_and_end",
    "no_committed_offset",
    "no_offset_at_timestamp",
    "no_progress",
    "partition_offset_changed",
    "partitions_deleted",
    "report_data_loss",
    "resolved_start_greater_than_end",
    "start_offset_reset",
    "start_offsets_do_not_match_assigned",
    "timestamps_do_not_match_assigned",
    "topic_offsets_do_not_match_assigned",
    "topics_not_found",
    "unresolved_start_greater_than_end",
]

_log = logging.getLogger("asyncgroup.spark")


class OptionError(ConfigError):
    """An option that is missing, unknown, or has a value that is not allowed.

    A ValueError, where Spark's source raises IllegalArgumentException. The text names the option and what is allowed;
    values that may be secret are hidden, and long values are shortened.
    """

    _SHOWN: Final = 300

    def __init__(self, key: str, value: object = None, allowed: str | None = None) -> None:
        if isinstance(value, str) and len(value) > self._SHOWN:
            value = value[: self._SHOWN] + "…"
        super().__init__(key, value, allowed)


class SourceError(AsyncGroupError):
    """An error condition of `CONDITIONS`, with `code`, `sql_state`, and `parameters`, the values in the text."""

    def __init__(self, code: str, parameters: Mapping[str, object]) -> None:
        self.code = code
        self.sql_state = CONDITIONS[code].sql_state
        self.parameters = {name: str(value) for name, value in parameters.items()}
        text = f"[{code}] {CONDITIONS[code].text.format_map(self.parameters)}"
        super().__init__(text if self.sql_state is None else f"{text} SQLSTATE: {self.sql_state}")

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, Mapping[str, str]]]:
        return type(self), (self.code, self.parameters)


class SourceArgumentError(SourceError, ValueError):
    """Options that contradict each other, with a code (in Spark an IllegalArgumentException)."""


class DataLossError(SourceError):
    """Records do not exist any more, or may have been skipped: `KAFKA_DATA_LOSS` and its subclasses."""


def report_data_loss(error: DataLossError, *, fail: bool) -> None:
    """Raise `error` if `fail` (`failOnDataLoss=true`); log it as a warning otherwise."""
    if fail:
        raise error
    _log.warning("%s", error)


# --- data loss --------------------------------------------------------------------------------------------------------


def _data_loss(kind: str, **parameters: object) -> DataLossError:
    return DataLossError(f"{DATA_LOSS}.{kind}", parameters)


def added_partition_does_not_start_from_zero(tp: TopicPartition, start: int) -> DataLossError:
    """A new partition's first offset is `start`: records before it were never read."""
    return _data_loss("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", topicPartition=tp, startOffset=start)


def could_not_read_offset_range(tp: TopicPartition, start: int, end: int, reason: object) -> DataLossError:
    """Records between the offsets `start` and `end` are missing, and not because of compaction."""
    return _data_loss(
        "COULD_NOT_READ_OFFSET_RANGE",
        topicPartition=tp,
        startOffset=start,
        endOffset=end,
        reason=_clause(reason),
    )


def initial_offset_not_found(partitions: Iterable[TopicPartition]) -> DataLossError:
    """New partitions were deleted before their first offset was known."""
    return _data_loss("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", partitions=_names(partitions))


def partitions_deleted(partitions: Iterable[TopicPartition], group_id: str | None = None) -> DataLossError:
    """Partitions that the query has read were deleted.

    Spark has another code for queries with a `kafka.group.id`, whose partitions may have been reassigned to another
    member. That cannot happen here, since a query does not join its group; the code is used for compatibility.
    """
    if group_id is None:
        return _data_loss("PARTITIONS_DELETED", partitions=_names(partitions))
    kind = "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT"
    return _data_loss(kind, partitions=_names(partitions), groupId=group_id)


def partition_offset_changed(tp: TopicPartition, previous: int, new: int) -> DataLossError:
    """A partition's end offset `new` is less than `previous`, which the query has reached already."""
    return _data_loss("PARTITION_OFFSET_CHANGED", topicPartition=tp, prevOffset=previous, newOffset=new)


def start_offset_reset(tp: TopicPartition, offset: int, first: int) -> DataLossError:
    """A range begins at `offset`, but the log's first offset is `first`."""
    return _data_loss("START_OFFSET_RESET", topicPartition=tp, offset=offset, fetchedOffset=first)


def group_lacks_offsets(group_id: str, offsets: Mapping[TopicPartition, int]) -> DataLossError:
    """The checkpoint has offsets of topics without committed offsets: the topics were probably recreated."""
    return DataLossError(
        "ASYNCGROUP_GROUP_LACKS_OFFSETS", {"groupId": group_id, "offsets": _offsets(offsets)}
    )


# --- planning ---------------------------------------------------------------------------------------------------------


def start_offsets_do_not_match_assigned(
    specified: Iterable[TopicPartition], assigned: Iterable[TopicPartition]
) -> SourceArgumentError:
    """startingOffsets (or endingOffsets) as JSON does not name exactly the partitions that are read."""
    return SourceArgumentError(
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        {"specifiedPartitions": _names(specified), "assignedPartitions": _names(assigned)},
    )


def topic_offsets_do_not_match_assigned(
    topics: Iterable[str], assigned: Iterable[str]
) -> SourceArgumentError:
    """startingOffsets (or endingOffsets) has "earliest" or "latest" for topics that are not read (SPARK-58774)."""
    return SourceArgumentError(
        "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        {"unmatchedTopics": _list(sorted(topics)), "assignedTopics": _list(sorted(set(assigned)))},
    )


def timestamps_do_not_match_assigned(
    position: Literal["start", "end"], specified: Iterable[TopicPartition], assigned: Iterable[TopicPartition]
) -> SourceArgumentError:
    """startingOffsetsByTimestamp or endingOffsetsByTimestamp does not name exactly the partitions that are read."""
    return SourceArgumentError(
        "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        {
            "position": position,
            "specifiedPartitions": _names(specified),
            "assignedPartitions": _names(assigned),
        },
    )


def mismatched_start_and_end(
    start: Iterable[TopicPartition], end: Iterable[TopicPartition]
) -> SourceArgumentError:
    """The starting and ending offsets (or timestamps) name different partitions."""
    return SourceArgumentError(
        "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
        {"tpsForStartOffset": _names(start), "tpsForEndOffset": _names(end)},
    )


_OPTIONS: Final = {
    "offset": "startingOffsets and endingOffsets",
    "timestamp": "startingOffsetsByTimestamp and endingOffsetsByTimestamp",
}


def unresolved_start_greater_than_end(
    tp: TopicPartition, start: int, end: int, *, kind: Literal["offset", "timestamp"] = "offset"
) -> SourceArgumentError:
    """According to the options, a partition ends before it starts."""
    return SourceArgumentError(
        "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        {
            "options": _OPTIONS[kind],
            "offsetType": kind,
            "startOffset": start,
            "endOffset": end,
            "topic": tp.topic,
            "partition": tp.partition,
        },
    )


def resolved_start_greater_than_end(tp: TopicPartition, start: int, end: int) -> SourceError:
    """A partition ends before it starts, according to the offsets that the options were resolved to."""
    return SourceError(
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        {"startOffset": start, "endOffset": end, "topic": tp.topic, "partition": tp.partition},
    )


# --- Trigger.AvailableNow ---------------------------------------------------------------------------------------------


def mismatched_partitions_with_prefetched(
    prefetched: Iterable[TopicPartition], end: Iterable[TopicPartition]
) -> SourceError:
    """The partitions of a batch's end offsets are not those found when the trigger started."""
    return SourceError(
        "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
        {"tpsForPrefetched": _names(prefetched), "tpsForEndOffset": _names(end)},
    )


def end_offset_beyond_prefetched(
    prefetched: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> SourceError:
    """A batch ends after the offsets found when the trigger started."""
    return SourceError(
        "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
        {"prefetchedOffset": _offsets(prefetched), "endOffset": _offsets(end)},
    )


def lost_partitions_with_available_now(
    latest: Iterable[TopicPartition], end: Iterable[TopicPartition]
) -> SourceError:
    """Partitions of the batch's end offsets were deleted."""
    return SourceError(
        "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
        {"tpsForLatestOffset": _names(latest), "tpsForEndOffset": _names(end)},
    )


def end_offset_beyond_latest(
    latest: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> SourceError:
    """The batch ends after the end of the log."""
    return SourceError(
        "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
        {"latestOffset": _offsets(latest), "endOffset": _offsets(end)},
    )


# --- records, brokers, groups -----------------------------------------------------------------------------------------


def malformed_timestamp(tp: TopicPartition, offset: int, timestamp: int) -> SourceError:
    """A record's timestamp (ms) is out of range for Spark's timestamps in microseconds."""
    return SourceError(
        "KAFKA_MALFORMED_RECORD_TIMESTAMP", {"topicPartition": tp, "offset": offset, "timestamp": timestamp}
    )


def no_progress(tp: TopicPartition, start: int, end: int, seconds: float, reason: object) -> SourceError:
    """A task received no records of the range for `seconds`; `reason` is the last failure."""
    return SourceError(
        "ASYNCGROUP_NO_PROGRESS",
        {
            "topicPartition": tp,
            "startOffset": start,
            "endOffset": end,
            "seconds": f"{seconds:g}",
            "reason": _clause(reason),
        },
    )


def brokers_unreachable(what: str, servers: str, reason: object) -> SourceError:
    """No broker answered, after all retries; `what` is the operation, as the beginning of a sentence."""
    return SourceError(
        "ASYNCGROUP_BROKERS_UNREACHABLE", {"what": what, "servers": servers, "reason": _clause(reason)}
    )


def topics_not_found(topics: Iterable[str]) -> SourceError:
    """Topics of `subscribe` or `assign` do not exist."""
    return SourceError("ASYNCGROUP_TOPICS_NOT_FOUND", {"topics": _list(sorted(topics))})


def group_in_use(group_id: str, members: Iterable[str]) -> SourceError:
    """The group has members, so that the broker refuses commits of a query (UNKNOWN_MEMBER_ID)."""
    return SourceError("ASYNCGROUP_GROUP_IN_USE", {"groupId": group_id, "members": _list(sorted(members))})


def no_committed_offset(group_id: str, partitions: Iterable[TopicPartition]) -> SourceError:
    """Partitions have no committed offset, with `startingOffsets=group` and `groupFallback=error`."""
    return SourceError(
        "ASYNCGROUP_NO_COMMITTED_OFFSET", {"groupId": group_id, "partitions": _names(partitions)}
    )


def no_offset_at_timestamp(timestamps: Mapping[TopicPartition, int]) -> SourceArgumentError:
    """These partitions have no record with the timestamp (ms) or a later one, and the strategy is `error`."""
    return SourceArgumentError("ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP", {"timestamps": _offsets(timestamps)})


def commit_failed(group_id: str, reason: object) -> SourceError:
    """Offsets could not be committed, with `commitFailure=fail`."""
    return SourceError("ASYNCGROUP_COMMIT_FAILED", {"groupId": group_id, "reason": _clause(reason)})


# --- values in texts --------------------------------------------------------------------------------------------------

_NAMED: Final = 20
"""Maximum number of items listed in a text: there may be thousands of partitions."""


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    if (more := len(shown) - _NAMED) > 0:
        shown[_NAMED:] = [f"and {more} more"]
    return ", ".join(shown) or "(none)"


def _names(partitions: Iterable[TopicPartition]) -> str:
    return _list(str(tp) for tp in sorted(partitions))


def _offsets(offsets: Mapping[TopicPartition, int]) -> str:
    return _list(f"{tp}@{offset}" for tp, offset in sorted(offsets.items()))


def _clause(reason: object) -> str:
    """Return a reason as the end of a sentence; an exception without text as the name of its type."""
    text = str(reason).rstrip(".")
    return text or type(reason).__name__
