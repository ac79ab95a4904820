"""Detect topics that were deleted and recreated, in a query's run or since its last one. Pure.

In a run the metadata show it, by the topic's id (`QueryTopics`). A checkpoint has offsets by topic name (in the JSON of Spark's own source), so it cannot tell a topic from a recreated one
with the same name. The group's commits can: this source puts the topic id (KIP-516) in their metadata, and brokers delete
a group's offsets with the topic (`GroupCoordinator.onPartitionsDeleted`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.options.settings import TopicIds
from asyncgroup.wire.messages import NO_UUID

__all__ = [
    "UNKNOWN_TOPIC",
    "CheckpointTopics",
    "Commits",
    "QueryTopics",
    "checkpoint_topics",
    "same_topic_offsets",
]

Commits: TypeAlias = Mapping[TopicPartition, tuple[int, UUID]]
"""Committed offsets, each with the topic id in its metadata (nil if there is none)."""

UNKNOWN_TOPIC: Final = UUID(int=(1 << 128) - 1)
"""Placeholder for the unknown id of a deleted topic; Kafka's own ids are random UUIDs (version 4)."""


class QueryTopics:
    """The topic ids that a query's offsets belong to; a recreated topic has another id in the metadata (`current`)."""

    def __init__(self) -> None:
        self.ids: dict[TopicPartition, UUID] = {}
        """As far as known."""
        self._starts: dict[TopicPartition, int] = {}
        """The first offsets of recreated topics; when a batch starts there, the query has changed to the new topic."""

    def __repr__(self) -> str:
        return f"<QueryTopics: {len(self.ids)} partitions, {len(self._starts)} of recreated topics>"

    def add_ids(self, ids: TopicIds) -> None:
        """Add topic ids that are known otherwise: from the commits of an earlier run."""
        self.ids |= ids

    def recreated(self, start: Mapping[TopicPartition, int], current: TopicIds) -> list[TopicPartition]:
        """Return the partitions whose `start` belongs to a deleted topic, in place of which there is a recreated one.

        Updates the ids: of new partitions, and of partitions whose `start` is that of the recreated topic.
        """
        for tp, topic_id in current.items():
            if tp not in start or tp not in self.ids or start[tp] == self._starts.get(tp):
                self.ids[tp] = topic_id
                self._starts.pop(tp, None)
        return [tp for tp in start if tp in current and self.ids[tp] != current[tp]]

    def without_start(self, recreated: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of the recreated partitions whose first offset is not known; look it up and call `add_starts`."""
        return [tp for tp in recreated if tp not in self._starts]

    def add_starts(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Add first offsets of recreated topics."""
        self._starts |= offsets

    def resets(self, start: Mapping[TopicPartition, int], current: TopicIds) -> dict[TopicPartition, int]:
        """Return the first offsets of recreated topics, without those from which the batch starts already.

        A batch from the old offset back to there makes the reset visible; the next batch reads the new topic.
        """
        recreated = self.recreated(start, current)
        return {tp: self._starts[tp] for tp in recreated if tp in self._starts}


class CheckpointTopics(NamedTuple):
    """The topics of a checkpoint's partitions."""

    ids: dict[TopicPartition, UUID]
    """The topic ids in the commits of partitions whose topic has another id now."""
    without_commit: list[TopicPartition]
    """Partitions of topics for which the group has no commit at all."""


def checkpoint_topics(
    partitions: Iterable[TopicPartition], current: TopicIds, commits: Commits
) -> CheckpointTopics:
    """Return what `commits` say about the topics of the checkpoint's `partitions`; `current` has the present topic ids.

    For a partition without a commit, those of the topic's other partitions are used; a commit without an id is trusted.
    """
    ids: dict[TopicPartition, UUID] = {}
    without_commit = []
    by_topic: dict[str, set[UUID]] = {}
    for tp, (_, topic_id) in commits.items():
        by_topic.setdefault(tp.topic, set()).add(topic_id)
    for tp in sorted(partitions):
        if tp not in current:
            continue  # the topic is deleted, which the planner reports
        named = {commits[tp][1]} if tp in commits else by_topic.get(tp.topic, set())
        if not named:
            without_commit.append(tp)
        elif current[tp] != NO_UUID and not named & {NO_UUID, current[tp]}:
            ids[tp] = min(named)
    return CheckpointTopics(ids, without_commit)


def same_topic_offsets(commits: Commits, current: TopicIds) -> dict[TopicPartition, int]:
    """Return the committed offsets without those whose topic id is not the current one."""
    return {
        tp: offset for tp, (offset, found) in commits.items() if _may_be_same(found, current.get(tp, NO_UUID))
    }


def _may_be_same(found: UUID, current: UUID) -> bool:
    ids: Collection[UUID] = {found, current}
    return len(ids) == 1 or NO_UUID in ids
