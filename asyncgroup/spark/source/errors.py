"""Errors of the source: a table of conditions, with the stable codes of Spark's own (`kafka-error-conditions.json`).

An exception that leaves a Python data source becomes text in the JVM: its type and attributes are lost. So the text begins
with the code, in the way Spark prints its error conditions:

    [KAFKA_DATA_LOSS.PARTITIONS_DELETED] The partitions … SQLSTATE: 22000

Codes and most names of parameters are Spark's, the texts are not. Codes that Spark does not have begin with `ASYNCGROUP_`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.model import TopicPartition

__all__ = [
    "CONDITIONS",
    "Condition",
    "DataLossError",
    "OptionError",
    "SourceArgumentError",
    "SourceError",
    "report_data_loss",
]

_log = logging.getLogger("asyncgroup.spark")

_MAX_LISTED: Final = 20
"""Maximum number of items listed in a text: there may be thousands of partitions."""


class Condition(NamedTuple):
    """An error condition."""

    text: str
    """With parameters in braces."""
    sql_state: str | None = None
    """As in Spark (22000: data exception)."""


def _loss(text: str) -> Condition:
    return Condition(
        f"{text} Records may be lost; with failOnDataLoss=false the query continues without them.", "22000"
    )


CONDITIONS: Final[Mapping[str, Condition]] = {
    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO": _loss(
        "The new partition {topicPartition} is read from its first offset, which is {startOffset}, not 0."
    ),
    "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE": _loss(
        "The log of {topicPartition} does not have all of the offsets [{startOffset}, {endOffset}): {reason}."
    ),
    "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS": _loss(
        "The new partitions {partitions} were deleted before their first offset was known."
    ),
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED": _loss("The partitions {partitions}, which the query has read, do not exist any more."),
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": _loss(
        "The partitions {partitions}, which the query has read, do not exist any more. They were not reassigned within"
        " the group {groupId}, as the query is not a member of its group."
    ),
    "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED": _loss(
        "The end offset of {topicPartition} went back from {prevOffset} to {newOffset}: the topic was deleted and"
        " recreated, its log was truncated, or the query was started at an offset after its end."
    ),
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED": Condition(
        "startingOffsets (or endingOffsets) must name exactly the partitions that are read (-1: latest, -2: earliest)."
        " Named: {specifiedPartitions}. Read: {assignedPartitions}."
    ),
    "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED": Condition(
        "startingOffsets (or endingOffsets) names the topics {unmatchedTopics}, which are not read."
        " Topics that are read: {assignedTopics}."
    ),
    "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED": Condition(
        "The {position} offsets by timestamp (startingOffsetsByTimestamp, endingOffsetsByTimestamp) must name exactly"
        " the partitions that are read."
        " Named: {specifiedPartitions}. Read: {assignedPartitions}."
    ),
    "KAFKA_MALFORMED_RECORD_TIMESTAMP": Condition(
        "The record of {topicPartition} at offset {offset} has the timestamp {timestamp} ms, which is out of range for"
        " Spark's timestamps in microseconds.",
        "22008",
    ),
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET": Condition(
        "startingOffsets and endingOffsets (or the options by timestamp) must name the same partitions."
        " Start: {tpsForStartOffset}. End: {tpsForEndOffset}."
    ),
    "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": Condition(
        "{options}: the starting {offsetType} {startOffset} of {topic}-{partition} is after the ending {offsetType}"
        " {endOffset}."
    ),
    "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": Condition(
        "The starting offset {startOffset} of {topic}-{partition} is after the ending offset {endOffset}: it is beyond"
        " the end of the log, the options contradict each other, or the topic was recreated."
    ),
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED": Condition(
        "The partitions of a batch's end offsets are not those found when Trigger.AvailableNow started; restart the"
        " query. At the start: {tpsForPrefetched}. Now: {tpsForEndOffset}."
    ),
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED": Condition(
        "A batch ends after the offsets found when Trigger.AvailableNow started; restart the query."
        " At the start: {prefetchedOffset}. Now: {endOffset}."
    ),
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW": Condition(
        "Partitions found when Trigger.AvailableNow started do not exist any more; restart the query."
        " Existing: {tpsForLatestOffset}. Partitions of the batch's end offsets: {tpsForEndOffset}."
    ),
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW": Condition(
        "Logs became shorter since Trigger.AvailableNow started; restart the query."
        " Latest offsets: {latestOffset}. End of the batch: {endOffset}."
    ),
    "ASYNCGROUP_GROUP_IN_USE": Condition(
        "The group {groupId} is in use; its members: {members}. A query can commit offsets only to a group without"
        " members: stop these members, use another kafka.group.id, or set commitOffsets=off."
    ),
    "ASYNCGROUP_GROUP_LACKS_OFFSETS": Condition(
        "The query's checkpoint has the offsets {offsets}, but its group {groupId} has no committed offset for these"
        " topics. Brokers delete a group's offsets with the topic, so the topics were probably deleted and recreated:"
        " with failOnDataLoss=false they are read from their first record. If they were not recreated (the query has"
        " another kafka.group.id than before, or the group's offsets have expired), start the query once with"
        " missingCommits=ignore.",
        "22000",
    ),
    "ASYNCGROUP_NO_COMMITTED_OFFSET": Condition(
        "The group {groupId} has no committed offset for {partitions}, and groupFallback=error allows no other start."
    ),
    "ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP": Condition(
        "Partitions have no record with the starting timestamp or a later one: {timestamps}. With"
        " startingOffsetsByTimestampStrategy=latest they would start at the end."
    ),
    "ASYNCGROUP_COMMIT_FAILED": Condition(
        "The offsets of the last finished batch could not be committed to the group {groupId}: {reason}."
        " With commitFailure=warn the query would continue."
    ),
    "ASYNCGROUP_BROKERS_UNREACHABLE": Condition("{what} failed: no broker of {servers} has answered: {reason}."),
    "ASYNCGROUP_NO_PROGRESS": Condition(
        "No records of {topicPartition} [{startOffset}, {endOffset}) were received for {seconds} s"
        " (kafkaConsumer.pollTimeoutMs): {reason}."
    ),
    "ASYNCGROUP_TOPICS_NOT_FOUND": Condition("The query's topics {topics} do not exist."),
}  # fmt: skip
"""The conditions by code; `SourceError` converts the values of their parameters.

Parameters have Spark's names, with these exceptions: `topicPartition` of KAFKA_MALFORMED_RECORD_TIMESTAMP is `topic` and
`partition` in Spark, `groupId` of PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT is `groupIdConfig`, the name of the option;
COULD_NOT_READ_OFFSET_RANGE has `reason` and no `groupId`, and `options` is additional.
"""


class OptionError(ConfigError):
    """An option that is missing, unknown, or has a value that is not allowed.

    A ValueError, where Spark's source raises IllegalArgumentException. The text names the option and what is allowed;
    values that may be secret are hidden, and long values are shortened.
    """

    _SHOWN: Final = 300

    def __init__(self, key: str, value: object = None, allowed: str | None = None) -> None:
        if isinstance(value, str) and len(value) > self._SHOWN:
            # before the text is made: JSON of offsets may have thousands of partitions
            value = value[: self._SHOWN] + "…"
        super().__init__(key, value, allowed)


class SourceError(AsyncGroupError):
    """A condition of `CONDITIONS`, with `code`, `sql_state`, and `parameters`, the texts of the values in its text.

    A value may be a TopicPartition, several partitions or names, offsets (or timestamps) by partition, seconds, or the
    `reason`: an error or a text.
    """

    def __init__(self, code: str, /, **parameters: object) -> None:
        condition = CONDITIONS[code]
        self.code = code
        self.sql_state = condition.sql_state
        # as texts, like the parameters of Spark's own errors
        self.parameters = {
            name: _clause(value) if name == "reason" else _shown(value) for name, value in parameters.items()
        }
        text = f"[{code}] {condition.text.format_map(self.parameters)}"
        super().__init__(text if self.sql_state is None else f"{text} SQLSTATE: {self.sql_state}")

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        # the class takes code and parameters, and makes the text from them
        return functools.partial(type(self), self.code, **self.parameters), ()


class SourceArgumentError(SourceError, ValueError):
    """Options that contradict each other, with a code (in Spark an IllegalArgumentException)."""


class DataLossError(SourceError):
    """Records do not exist any more, or may have been skipped: `KAFKA_DATA_LOSS` and its subclasses."""


def report_data_loss(error: DataLossError, *, fail: bool) -> None:
    """Raise `error` if `fail` (`failOnDataLoss=true`); log it as a warning otherwise."""
    if fail:
        raise error
    _log.warning("%s", error)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    # a TopicPartition is a tuple, and a str iterable: both are one value
    if isinstance(value, TopicPartition) or not isinstance(value, Iterable) or isinstance(value, str):
        return str(value)
    offsets = value if isinstance(value, Mapping) else None
    shown = [str(item) if offsets is None else f"{item}@{offsets[item]}" for item in sorted(value)]
    if (more := len(shown) - _MAX_LISTED) > 0:
        shown[_MAX_LISTED:] = [f"and {more} more"]
    return ", ".join(shown) or "(none)"


def _clause(reason: object) -> str:
    """Return a reason as the end of a sentence; an exception without text as the name of its type."""
    # the condition's text ends the sentence
    text = str(reason).rstrip(".")
    return text or type(reason).__name__
