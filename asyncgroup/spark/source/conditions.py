"""The kinds of errors that the source has: Spark's codes (`kafka-error-conditions.json`) with sentences of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["CONDITIONS", "DATA_LOSS", "Condition"]

DATA_LOSS: Final = "KAFKA_DATA_LOSS"
"""The condition whose kinds `failOnDataLoss=false` turns into warnings."""


class Condition(NamedTuple):
    """A kind of error: what its text says, and the SQL state that Spark gives it (22000: data exception)."""

    text: str
    sql_state: str | None = None


def _loss(text: str) -> Condition:
    return Condition(
        f"{text} Records may be lost; with failOnDataLoss=false the query goes on without them.", "22000"
    )


CONDITIONS: Final[Mapping[str, Condition]] = {
    f"{DATA_LOSS}.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO": _loss(
        "The new partition {topicPartition} is read from its start, but that is offset {startOffset}, not 0."
    ),
    f"{DATA_LOSS}.COULD_NOT_READ_OFFSET_RANGE": _loss(
        "The log of {topicPartition} does not hold all of the offsets [{startOffset}, {endOffset}): {reason}."
    ),
    f"{DATA_LOSS}.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS": _loss(
        "The new partitions {partitions} have no first offset: they are gone again."
    ),
    f"{DATA_LOSS}.PARTITIONS_DELETED": _loss("The partitions {partitions} are gone, and were read until now."),
    f"{DATA_LOSS}.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": _loss(
        "The partitions {partitions} are gone, and were read until now. No other member of the group {groupId} can"
        " have taken them, as the query reads without being one."
    ),
    f"{DATA_LOSS}.PARTITION_OFFSET_CHANGED": _loss(
        "The offsets of {topicPartition} went back from {prevOffset} to {newOffset}: the topic was deleted and"
        " recreated or lost its end, or the first batch was to start beyond it."
    ),
    f"{DATA_LOSS}.START_OFFSET_RESET": _loss(
        "The log of {topicPartition} was to be read from {offset}, but its first offset is {fetchedOffset}."
    ),
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED": Condition(
        "startingOffsets (endingOffsets) must name all partitions that are read, and no others (-1: latest, -2:"
        " earliest)."
        " Named: {specifiedPartitions}. Read: {assignedPartitions}."
    ),
    "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED": Condition(
        "startingOffsets (endingOffsets) names the topics {unmatchedTopics}, of which no partition is read."
        " Topics that are read: {assignedTopics}."
    ),
    "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED": Condition(
        "The {position} offsets by timestamp (startingOffsetsByTimestamp, endingOffsetsByTimestamp) must name all"
        " partitions that are read, and no others."
        " Named: {specifiedPartitions}. Read: {assignedPartitions}."
    ),
    "KAFKA_MALFORMED_RECORD_TIMESTAMP": Condition(
        "The record at {topicPartition}, offset {offset}, has the timestamp {timestamp}, which is no number of"
        " milliseconds that Spark can hold in microseconds.",
        "22008",
    ),
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET": Condition(
        "startingOffsets and endingOffsets, or their relatives by timestamp, must name the same partitions."
        " Start: {tpsForStartOffset}. End: {tpsForEndOffset}."
    ),
    "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": Condition(
        "By {options} the starting {offsetType} of {topic}-{partition}, {startOffset}, is after the ending one,"
        " {endOffset}."
    ),
    "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": Condition(
        "The starting offset of {topic}-{partition} turned out to be {startOffset}, after the ending one,"
        " {endOffset}: it lies beyond the log's end, the options contradict each other, or the topic was made anew."
    ),
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED": Condition(
        "A batch of Trigger.AvailableNow ends with other partitions than the trigger began with; start the query"
        " again. At the beginning: {tpsForPrefetched}. Now: {tpsForEndOffset}."
    ),
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED": Condition(
        "A batch of Trigger.AvailableNow ends behind what there was when the trigger began; start the query again."
        " At the beginning: {prefetchedOffset}. Now: {endOffset}."
    ),
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW": Condition(
        "Partitions that Trigger.AvailableNow began with are gone; start the query again."
        " There are: {tpsForLatestOffset}. The batch ends with: {tpsForEndOffset}."
    ),
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW": Condition(
        "Logs became shorter than when Trigger.AvailableNow began; start the query again."
        " Their ends: {latestOffset}. The batch ends at: {endOffset}."
    ),
    "ASYNCGROUP_GROUP_IN_USE": Condition(
        "The group {groupId} is in use: it has the members {members}. A query commits for its group alone: end those"
        " members, give the query a kafka.group.id of its own, or set commitOffsets=off."
    ),
    "ASYNCGROUP_GROUP_LACKS_OFFSETS": Condition(
        "The query's checkpoint has read up to {offsets}, but its group {groupId} has no committed offset for these"
        " topics. Brokers delete a group's offsets with the topic, so the topics were probably deleted and recreated:"
        " with failOnDataLoss=false they are read from their first record. If they were not recreated (the query has"
        " another kafka.group.id than before, or the group's offsets have expired), start the query once with"
        " missingCommits=ignore.",
        "22000",
    ),
    "ASYNCGROUP_NO_COMMITTED_OFFSET": Condition(
        "The group {groupId} has committed no offset for {partitions}, and groupFallback=error leaves no other start."
    ),
    "ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP": Condition(
        "No record is as young as the timestamps to start from: {timestamps}. With"
        " startingOffsetsByTimestampStrategy=latest such partitions would start at their ends."
    ),
    "ASYNCGROUP_COMMIT_FAILED": Condition(
        "The offsets of the last finished batch could not be committed to the group {groupId}: {reason}."
        " With commitFailure=warn the query would go on."
    ),
    "ASYNCGROUP_BROKERS_UNREACHABLE": Condition("{what} failed, since no broker of {servers} answers: {reason}."),
    "ASYNCGROUP_NO_PROGRESS": Condition(
        "{topicPartition} gave no records of [{startOffset}, {endOffset}) for {seconds} s"
        " (kafkaConsumer.pollTimeoutMs): {reason}."
    ),
    "ASYNCGROUP_TOPICS_NOT_FOUND": Condition("There are no topics {topics}, which the query reads."),
}  # fmt: skip
"""Every condition by its code. Texts name their parameters in braces, by Spark's names where it has them."""
