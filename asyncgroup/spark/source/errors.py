"""Errors of the source, by the stable codes of Spark's own Kafka source (`kafka-error-conditions.json`).

An exception that leaves a Python data source becomes a line of text in the JVM: its type and its attributes are lost.
So the text begins with the code, as Spark prints its error conditions:

    [KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions … SQLSTATE: 22000

Codes and parameters are Spark's, the sentences are ours. Conditions that Spark has no code for begin with `ASYNCGROUP_`.
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

    A ValueError, as Spark's source raises IllegalArgumentException. The text names the option and what is allowed; a
    value that may be secret is not shown, nor more than the beginning of a long one.
    """

    _SHOWN: Final = 300

    def __init__(self, key: str, value: object = None, allowed: str | None = None) -> None:
        if isinstance(value, str) and len(value) > self._SHOWN:
            value = value[: self._SHOWN] + "…"
        super().__init__(key, value, allowed)


class SourceError(AsyncGroupError):
    """A condition of `CONDITIONS`: `code`, `sql_state`, and `parameters`, the values that the text names."""

    def __init__(self, code: str, parameters: Mapping[str, object]) -> None:
        self.code = code
        self.sql_state = CONDITIONS[code].sql_state
        self.parameters = {name: str(value) for name, value in parameters.items()}
        text = f"[{code}] {CONDITIONS[code].text.format_map(self.parameters)}"
        super().__init__(text if self.sql_state is None else f"{text} SQLSTATE: {self.sql_state}")

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, Mapping[str, str]]]:
        return type(self), (self.code, self.parameters)


class SourceArgumentError(SourceError, ValueError):
    """Options that contradict each other, where Spark has a code for that (its IllegalArgumentException)."""


class DataLossError(SourceError):
    """Records are not there any more, or may have been skipped: `KAFKA_DATA_LOSS` with its kind."""


def report_data_loss(error: DataLossError, *, fail: bool) -> None:
    """Raises `error` with `failOnDataLoss=true`, and warns otherwise."""
    if fail:
        raise error
    _log.warning("%s", error)


# --- data loss --------------------------------------------------------------------------------------------------------


def _data_loss(kind: str, **parameters: object) -> DataLossError:
    return DataLossError(f"{DATA_LOSS}.{kind}", parameters)


def added_partition_does_not_start_from_zero(tp: TopicPartition, start: int) -> DataLossError:
    """A partition that was found while the query ran begins at `start`: what lay before it was never read."""
    return _data_loss("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", topicPartition=tp, startOffset=start)


def could_not_read_offset_range(tp: TopicPartition, start: int, end: int, reason: object) -> DataLossError:
    """The log lacks records between the offsets `start` and `end`, by more than compaction explains."""
    return _data_loss(
        "COULD_NOT_READ_OFFSET_RANGE",
        topicPartition=tp,
        startOffset=start,
        endOffset=end,
        reason=_clause(reason),
    )


def initial_offset_not_found(partitions: Iterable[TopicPartition]) -> DataLossError:
    """New partitions disappeared before their first offset was known."""
    return _data_loss("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", partitions=_names(partitions))


def partitions_deleted(partitions: Iterable[TopicPartition], group_id: str | None = None) -> DataLossError:
    """Partitions that the query read are gone.

    Spark has a code of its own for queries with a `kafka.group.id`, as another member might have taken the partitions.
    Here that cannot be, since a query reads without joining its group; the code is Spark's all the same.
    """
    if group_id is None:
        return _data_loss("PARTITIONS_DELETED", partitions=_names(partitions))
    kind = "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT"
    return _data_loss(kind, partitions=_names(partitions), groupId=group_id)


def partition_offset_changed(tp: TopicPartition, previous: int, new: int) -> DataLossError:
    """A partition ends at `new`, before `previous`, which was read already."""
    return _data_loss("PARTITION_OFFSET_CHANGED", topicPartition=tp, prevOffset=previous, newOffset=new)


def start_offset_reset(tp: TopicPartition, offset: int, first: int) -> DataLossError:
    """A range begins at `offset`, but the log does at `first`."""
    return _data_loss("START_OFFSET_RESET", topicPartition=tp, offset=offset, fetchedOffset=first)


def group_lacks_offsets(group_id: str, offsets: Mapping[TopicPartition, int]) -> DataLossError:
    """The checkpoint has offsets of topics for which the group has none: the topics were probably recreated."""
    return DataLossError(
        "ASYNCGROUP_GROUP_LACKS_OFFSETS", {"groupId": group_id, "offsets": _offsets(offsets)}
    )


# --- planning ---------------------------------------------------------------------------------------------------------


def start_offsets_do_not_match_assigned(
    specified: Iterable[TopicPartition], assigned: Iterable[TopicPartition]
) -> SourceArgumentError:
    """startingOffsets (or endingOffsets) as JSON names other partitions than there are."""
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
    """startingOffsetsByTimestamp or endingOffsetsByTimestamp names other partitions than there are."""
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
    """The JSON of the starting offsets, or timestamps, names other partitions than that of the ending ones."""
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
    """The options themselves say that a partition ends before it starts."""
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
    """A partition ends before it starts, once the options had become offsets."""
    return SourceError(
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        {"startOffset": start, "endOffset": end, "topic": tp.topic, "partition": tp.partition},
    )


# --- Trigger.AvailableNow ---------------------------------------------------------------------------------------------


def mismatched_partitions_with_prefetched(
    prefetched: Iterable[TopicPartition], end: Iterable[TopicPartition]
) -> SourceError:
    """The batch's end has other partitions than the trigger began with."""
    return SourceError(
        "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
        {"tpsForPrefetched": _names(prefetched), "tpsForEndOffset": _names(end)},
    )


def end_offset_beyond_prefetched(
    prefetched: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> SourceError:
    """The batch ends behind what the trigger began with."""
    return SourceError(
        "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
        {"prefetchedOffset": _offsets(prefetched), "endOffset": _offsets(end)},
    )


def lost_partitions_with_available_now(
    latest: Iterable[TopicPartition], end: Iterable[TopicPartition]
) -> SourceError:
    """Partitions of the batch's end are gone."""
    return SourceError(
        "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
        {"tpsForLatestOffset": _names(latest), "tpsForEndOffset": _names(end)},
    )


def end_offset_beyond_latest(
    latest: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> SourceError:
    """The batch ends behind the logs' ends."""
    return SourceError(
        "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
        {"latestOffset": _offsets(latest), "endOffset": _offsets(end)},
    )


# --- records, brokers, groups -----------------------------------------------------------------------------------------


def malformed_timestamp(tp: TopicPartition, offset: int, timestamp: int) -> SourceError:
    """A record's timestamp (ms) overflows Spark's microseconds."""
    return SourceError(
        "KAFKA_MALFORMED_RECORD_TIMESTAMP", {"topicPartition": tp, "offset": offset, "timestamp": timestamp}
    )


def no_progress(tp: TopicPartition, start: int, end: int, seconds: float, reason: object) -> SourceError:
    """A task waited `seconds` for records between the offsets `start` and `end`; `reason` is the last failure."""
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
    """`what` (a few words, beginning a sentence) was tried as often as allowed, and no broker answered."""
    return SourceError(
        "ASYNCGROUP_BROKERS_UNREACHABLE", {"what": what, "servers": servers, "reason": _clause(reason)}
    )


def topics_not_found(topics: Iterable[str]) -> SourceError:
    """Topics of `subscribe` or `assign` that the cluster does not have."""
    return SourceError("ASYNCGROUP_TOPICS_NOT_FOUND", {"topics": _list(sorted(topics))})


def group_in_use(group_id: str, members: Iterable[str]) -> SourceError:
    """The group has live members, so that the broker takes no commit from anybody else (UNKNOWN_MEMBER_ID)."""
    return SourceError("ASYNCGROUP_GROUP_IN_USE", {"groupId": group_id, "members": _list(sorted(members))})


def no_committed_offset(group_id: str, partitions: Iterable[TopicPartition]) -> SourceError:
    """`startingOffsets=group` with `groupFallback=error`, and partitions without a commit."""
    return SourceError(
        "ASYNCGROUP_NO_COMMITTED_OFFSET", {"groupId": group_id, "partitions": _names(partitions)}
    )


def no_offset_at_timestamp(timestamps: Mapping[TopicPartition, int]) -> SourceArgumentError:
    """No record of these partitions has its timestamp (ms) or a later one, and the strategy is `error`."""
    return SourceArgumentError("ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP", {"timestamps": _offsets(timestamps)})


def commit_failed(group_id: str, reason: object) -> SourceError:
    """A commit failed as often as allowed, and `commitFailure=fail`."""
    return SourceError("ASYNCGROUP_COMMIT_FAILED", {"groupId": group_id, "reason": _clause(reason)})


# --- values in a text -------------------------------------------------------------------------------------------------

_NAMED: Final = 20
"""How many things a text names: a cluster may have thousands of partitions."""


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
    """A reason as the end of a sentence; an exception without words by its type."""
    text = str(reason).rstrip(".")
    return text or type(reason).__name__
