"""Detect topics that were deleted and recreated since a query's last run, by the group's committed offsets. Pure.

A checkpoint has offsets by topic name (in the JSON of Spark's own source), so it cannot tell a topic from a recreated one
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

__all__ = ["UNKNOWN_TOPIC", "CheckpointTopics", "Commits", "checkpoint_topics", "same_topic_offsets"]

Commits: TypeAlias = Mapping[TopicPartition, tuple[int, UUID]]
"""Committed offsets, each with the topic id in its metadata (nil if there is none)."""

UNKNOWN_TOPIC: Final = UUID(int=(1 << 128) - 1)
"""Placeholder for the unknown id of a deleted topic; Kafka's own ids are random UUIDs (version 4)."""


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
