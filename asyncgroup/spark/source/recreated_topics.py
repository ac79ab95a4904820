"""Which topics a checkpoint's offsets belong to, by what the query's group has committed. Pure.

A checkpoint holds offsets by topic name (its JSON is that of Spark's own source), so it cannot tell a topic from one that
was deleted and recreated under the same name. The group's commits can: this source puts the topic id (KIP-516) in their
metadata, and brokers delete a group's offsets with the topic (`GroupCoordinator.onPartitionsDeleted`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.settings import TopicIds
from asyncgroup.wire.messages import NO_UUID

__all__ = ["UNKNOWN_TOPIC", "CheckpointTopics", "Commits", "checkpoint_topics", "same_topic_offsets"]

Commits: TypeAlias = Mapping[TopicPartition, tuple[int, UUID]]
"""Committed offsets, each with the topic id in its metadata; nil without one."""

UNKNOWN_TOPIC: Final = UUID(int=(1 << 128) - 1)
"""Stands for the id of a deleted topic whose id is not known; Kafka's own ids are random (version 4)."""


class CheckpointTopics(NamedTuple):
    """`ids`: the topic ids that commits name for partitions. `without_commit`: partitions of topics without any commit."""

    ids: dict[TopicPartition, UUID]
    without_commit: list[TopicPartition]


def checkpoint_topics(
    partitions: Iterable[TopicPartition], current: TopicIds, commits: Commits
) -> CheckpointTopics:
    """Return what `commits` say of the topics that the checkpoint's `partitions` belong to; `current` has today's ids.

    A partition without a commit belongs to the topic of the others; commits without an id are believed.
    """
    ids: dict[TopicPartition, UUID] = {}
    without_commit = []
    by_topic: dict[str, set[UUID]] = {}
    for tp, (_, topic_id) in commits.items():
        by_topic.setdefault(tp.topic, set()).add(topic_id)
    for tp in sorted(partitions):
        if tp not in current:
            continue  # the topic is gone, which is noticed elsewhere
        named = {commits[tp][1]} if tp in commits else by_topic.get(tp.topic, set())
        if not named:
            without_commit.append(tp)
        elif current[tp] != NO_UUID and not named & {NO_UUID, current[tp]}:
            ids[tp] = min(named)
    return CheckpointTopics(ids, without_commit)


def same_topic_offsets(commits: Commits, current: TopicIds) -> dict[TopicPartition, int]:
    """Return the committed offsets without those whose commit names another topic than the current one."""
    return {
        tp: offset for tp, (offset, found) in commits.items() if _may_be_same(found, current.get(tp, NO_UUID))
    }


def _may_be_same(found: UUID, current: UUID) -> bool:
    ids: Collection[UUID] = {found, current}
    return len(ids) == 1 or NO_UUID in ids
