"""What a group object remembers of topics: how they were when it first saw them, and which ones are gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from uuid import UUID

from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["KnownTopics"]


class KnownTopics:
    """Topics since this group object exists.

    A partition that was not there when its topic was first seen began empty under our eyes: nothing of it can be
    skipped on purpose, so it starts at the log's beginning whatever `auto_offset_reset` says (Java leaves a gap there,
    KAFKA-12478). The same holds for a topic that came into being after its pattern was first looked at, and for one
    that was deleted and created anew. A member that joins later cannot know any of this: for it the policy holds.
    """

    def __init__(self) -> None:
        self._first_counts: dict[str, int] = {}
        self._ids: dict[str, UUID] = {}
        self._missing: dict[str, float] = {}
        self._patterns: set[tuple[str, int]] = set()

    def __contains__(self, topic: object) -> bool:
        """Whether the topic was ever there."""
        return topic in self._first_counts

    def update(self, topics: Iterable[TopicInfo], *, are_new: bool = False) -> None:
        """These exist now; `are_new` says that those never seen before were looked for before and not there."""
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
        """All topics were matched with this pattern; whether that was done before, so that what is unknown is new."""
        key = (pattern.pattern, pattern.flags)
        known = key in self._patterns
        self._patterns.add(key)
        return known

    def mark_missing(self, topic: str, now: float) -> None:
        """A topic that was there is gone."""
        self._missing.setdefault(topic, now)

    @property
    def missing(self) -> Mapping[str, float]:
        """The topics that are gone, and since when (loop time)."""
        return self._missing

    def forget_missing(self, topics: Iterable[str]) -> None:
        """These were given up: whoever asks for one again begins as with any unknown topic."""
        for topic in topics:
            if self._missing.pop(topic, None) is not None:
                self._first_counts.pop(topic, None)
                self._ids.pop(topic, None)

    def was_added(self, tp: TopicPartition) -> bool:
        """Whether the partition came into being after its topic was first seen."""
        return tp.partition >= self._first_counts.get(tp.topic, tp.partition + 1)
