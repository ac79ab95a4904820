"""Topics as a group object first saw them, to recognize partitions and topics that were created or deleted since."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from uuid import UUID

from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["KnownTopics"]


class KnownTopics:
    """The topics seen since this group object was created.

    A partition that did not exist when its topic was first seen was created while the group was running, and none of
    its records may be skipped: it is read from the log start with any `auto_offset_reset` (Java skips records
    there, KAFKA-12478). The same applies to a topic created after its pattern was first matched, and to one that was
    deleted and recreated. A member that joins later cannot know this, and applies `auto_offset_reset`.
    """

    def __init__(self) -> None:
        self._first_counts: dict[str, int] = {}  # partitions when first seen; 0 if created since
        self._ids: dict[str, UUID] = {}
        self._missing: dict[
            str, float
        ] = {}  # deleted topics, with the loop time at which each was first missing
        self._patterns: set[tuple[str, int]] = set()  # (pattern, flags) matched before

    def __contains__(self, topic: object) -> bool:
        """Whether the topic was ever seen."""
        return topic in self._first_counts

    def update(self, topics: Iterable[TopicInfo], *, are_new: bool = False) -> None:
        """Record topics that exist now. `are_new`: those never seen before did not exist at an earlier lookup."""
        for info in topics:
            before = self._ids.get(info.name)
            recreated = info.name in self._missing or (
                before is not None and m.NO_UUID not in (before, info.topic_id) and before != info.topic_id
            )
            if recreated or (are_new and info.name not in self._first_counts):
                self._first_counts[info.name] = 0
            else:
                self._first_counts.setdefault(info.name, len(info.partitions))
            self._ids[info.name] = info.topic_id
            self._missing.pop(info.name, None)

    def mark_matched(self, pattern: re.Pattern[str]) -> bool:
        """Record that all topics are matched with the pattern; True if they were before, so that unseen ones are new."""
        key = (pattern.pattern, pattern.flags)
        known = key in self._patterns
        self._patterns.add(key)
        return known

    def mark_missing(self, topic: str, now: float) -> None:
        """Record that a known topic no longer exists."""
        self._missing.setdefault(topic, now)

    @property
    def missing(self) -> Mapping[str, float]:
        """The known topics that no longer exist, with the loop time at which each was first missing."""
        return self._missing

    def forget_missing(self, topics: Iterable[str]) -> None:
        """Forget missing topics: a later subscription treats them as never seen."""
        for topic in topics:
            if self._missing.pop(topic, None) is not None:
                self._first_counts.pop(topic, None)
                self._ids.pop(topic, None)

    def was_added(self, tp: TopicPartition) -> bool:
        """Whether the partition was created after its topic was first seen."""
        return tp.partition >= self._first_counts.get(tp.topic, tp.partition + 1)
