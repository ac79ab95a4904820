"""Deletion of old segments by `retention.ms` and `retention.bytes`, periodically (Kafka's `LogManager.cleanupLogs`).

`log_cleaner` does this for compacted logs. A cluster in memory checks only topics for which such a config is set:
tests expect that nothing is deleted by default, and often use timestamps of 1970. A cluster on disk checks all
topics, as Kafka does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from asyncgroup.broker.clock import Timers, WallClock
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.errors import AsyncGroupError

__all__ = ["CHECK_INTERVAL", "ClusterLogs", "Retention"]

log = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 300.0
"""Kafka's default of `log.retention.check.interval.ms`, in seconds."""

_SETTINGS: Final = frozenset({"cleanup.policy", "retention.bytes", "retention.ms"})


@dataclass(frozen=True)
class ClusterLogs:
    """The logs of a cluster, for the periodic work on them; `all_topics`: on every topic, as in a cluster on disk.

    `changed` is called with each partition whose log was shortened or rewritten, so that parked fetches are checked
    again.
    """

    controller: Controller
    timers: Timers
    clock: WallClock
    changed: Callable[[Partition], None]
    all_topics: bool = False

    def delete_old_segments(self, partition: Partition) -> None:
        """Delete the partition's segments beyond its retention; a disk error is logged and retried the next time."""
        config, before = partition.config, partition.log.start_offset
        try:
            if config.delete:
                partition.log.delete_old_segments(self.clock(), config.retention_ms, config.retention_bytes)
            else:
                partition.log.delete_segments_before_start()
        except AsyncGroupError as error:
            log.error("deleting old segments of %s-%d failed: %s", partition.topic, partition.index, error)
        if partition.log.start_offset > before:
            log.info(
                "%s-%d: the log start offset is now %d",
                partition.topic,
                partition.index,
                partition.log.start_offset,
            )
            self.changed(partition)


class Retention:
    """Deletes old segments every `interval` seconds; of which topics, see the module's docstring."""

    def __init__(self, logs: ClusterLogs, interval: float = CHECK_INTERVAL) -> None:
        self._logs = logs
        self._interval = interval
        self._ticking = False  # whether the timer is running
        if logs.all_topics:
            self._tick_later()

    def __repr__(self) -> str:
        return f"<Retention every {self._interval:g} s{'' if self._ticking else ', not begun'}>"

    def configs_changed(self, topic: Topic) -> None:
        """Start the timer with the first topic that has retention configs."""
        if not self._ticking and self._is_wanted(topic) and not topic.is_internal:
            self._tick_later()

    def _is_wanted(self, topic: Topic) -> bool:
        return (
            self._logs.all_topics
            or not _SETTINGS.isdisjoint(topic.configs)
            or self._logs.controller.configs.has_topic_default(_SETTINGS)
        )

    def _tick_later(self) -> None:
        self._ticking = True
        self._logs.timers.schedule(("retention",), self._interval, self._tick)

    def _tick(self) -> None:
        self._tick_later()
        wanted = [topic for topic in self._logs.controller.topics.values() if self._is_wanted(topic)]
        for partition in _partitions(wanted):
            if not partition.config.compact:  # `LogCleaner` does it for compacted logs
                self._logs.delete_old_segments(partition)

    def apply(self) -> None:
        """Delete the old segments of all topics now, also by Kafka's default retention."""
        for partition in _partitions(self._logs.controller.topics.values()):
            self._logs.delete_old_segments(partition)

    def compact(self, topic: Topic) -> None:
        """Compact all stable records of a topic now, with any `cleanup.policy`."""
        for partition in topic.partitions:
            partition.log.compact(self._logs.clock(), partition.config.delete_retention_ms)
            self._logs.changed(partition)


def _partitions(topics: Iterable[Topic]) -> list[Partition]:
    return [partition for topic in topics for partition in topic.partitions]
