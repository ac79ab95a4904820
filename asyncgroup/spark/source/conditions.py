"""The error conditions of the source: codes of Spark (`kafka-error-conditions.json`), texts of this project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["CONDITIONS", "DATA_LOSS", "Condition"]

DATA_LOSS: Final = "KAFKA_DATA_LOSS"
"""The condition whose subclasses are only logged as warnings with `failOnDataLoss=false`."""


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
    f"{DATA_LOSS}.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO": _loss(
        "The new partition {topicPartition} is read from its first offset, which is {startOffset}, not 0."
    ),
    f"{DATA_LOSS}.COULD_NOT_READ_OFFSET_RANGE": _loss(
        "The log of {topicPartition} does not have all of the offsets [{startOffset}, {endOffset}): {reason}."
    ),
    f"{DATA_LOSS}.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS": _loss(
        "The new partitions {partitions} were deleted before their first offset was known."
    ),
    f"{DATA_LOSS}.PARTITIONS_DELETED": _loss("The partitions {partitions}, which the query has read, do not exist any more."),
    f"{DATA_LOSS}.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": _loss(
        "The partitions {partitions}, which the query has read, do not exist any more. They were not reassigned within"
        " the group {groupId}, as the query is not a member of its group."
    ),
    f"{DATA_LOSS}.PARTITION_OFFSET_CHANGED": _loss(
        "The end offset of {topicPartition} went back from {prevOffset} to {newOffset}: the topic was deleted and"
        " recreated, its log was truncated, or the query was started at an offset after its end."
    ),
    f"{DATA_LOSS}.START_OFFSET_RESET": _loss(
        "{topicPartition} should be read from offset {offset}, but its first offset is {fetchedOffset}."
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
"""The conditions by code. Parameters have Spark's names, where it has the condition."""
