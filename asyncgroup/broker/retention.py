"""Cleaning up: what `retention.ms`, `retention.bytes` and `cleanup.policy` of topics ask for, now and every so often
(Kafka's `LogManager.cleanupLogs` and `LogCleaner`).

A cluster in memory looks by itself at topics only that have such a setting of their own: what is never cleaned up by
default is what tests expect, and theirs are often records from 1970. A cluster on disk looks at all, as Kafka does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.broker.clock import WallClock
from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.ports import Timers
from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.errors import AsyncGroupError

__all__ = ["CHECK_INTERVAL", "Retention"]

log = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 300.0
"""Kafka's default of `log.retention.check.interval.ms`, in seconds."""

_SETTINGS: Final = frozenset(
    {"cleanup.policy", "delete.retention.ms", "max.compaction.lag.ms", "retention.bytes", "retention.ms"}
)
_DIRTY_RATIO: Final = "0.5"
"""Kafka's default of `min.cleanable.dirty.ratio`."""


class Retention:
    """Looks at the logs every `interval` seconds; `everything`: at those of all topics, see above.

    `changed` is told of each partition whose log became shorter, so that readers hear of it.
    """

    def __init__(
        self,
        controller: Controller,
        timers: Timers,
        clock: WallClock,
        changed: Callable[[Partition], None],
        *,
        interval: float = CHECK_INTERVAL,
        everything: bool = False,
    ) -> None:
        self._controller, self._timers, self._clock = controller, timers, clock
        self._changed, self._interval, self._everything = changed, interval, everything
        self._ticking = False
        if everything:
            self._tick_later()

    def __repr__(self) -> str:
        return f"<Retention every {self._interval:g} s{'' if self._ticking else ', not begun'}>"

    def configured(self, topic: Topic) -> None:
        """A topic has settings of its own: they may be the first that ask for cleaning up."""
        if not self._ticking and self._is_wanted(topic) and not topic.is_internal:
            self._tick_later()

    def _is_wanted(self, topic: Topic) -> bool:
        return (
            self._everything
            or not _SETTINGS.isdisjoint(topic.configs)
            or self._controller.settings.set_for_topics(_SETTINGS)
        )

    def _tick_later(self) -> None:
        self._ticking = True
        self._timers.schedule(("retention",), self._interval, self._tick)

    def _tick(self) -> None:
        self._tick_later()
        wanted = [topic for topic in self._controller.topics.values() if self._is_wanted(topic)]
        for partition in _partitions(wanted):
            self._tend(partition, self._retain)
            if partition.config.compact:
                self._tend(partition, self._compact_if_dirty)

    def apply(self) -> None:
        """Delete what the settings of all topics, Kafka's defaults included, no longer keep."""
        for partition in _partitions(self._controller.topics.values()):
            self._tend(partition, self._retain)

    def compact(self, topic: Topic) -> None:
        """Compact a topic, whatever its policy: all that is stable and in its logs now."""
        for partition in topic.partitions:
            partition.log.compact(self._clock(), partition.config.delete_retention_ms)
            self._changed(partition)

    def _tend(self, partition: Partition, work: Callable[[Partition], None]) -> None:
        try:
            work(partition)
        except AsyncGroupError as error:  # the disk, or a batch that cannot be read
            log.error("cleaning up %s-%d failed: %s", partition.topic, partition.index, error)

    def _retain(self, partition: Partition) -> None:
        config, before = partition.config, partition.log.start_offset
        if config.delete:
            partition.log.retain(self._clock(), config.retention_ms, config.retention_bytes)
        else:
            partition.log.delete_dead_segments()
        if partition.log.start_offset > before:
            log.info("%s-%d begins at %d now", partition.topic, partition.index, partition.log.start_offset)
            self._changed(partition)

    def _compact_if_dirty(self, partition: Partition) -> None:
        defaults = self._controller.settings.topic_defaults(partition.leader)
        configs = {**defaults, **self._controller.topics[partition.topic].configs}
        ratio = float(configs.get("min.cleanable.dirty.ratio") or _DIRTY_RATIO)
        config, now_ms = partition.config, self._clock()
        longest = configs.get("max.compaction.lag.ms")
        overdue = longest is not None and partition.log.dirty_since < now_ms - int(longest)
        if overdue or partition.log.dirty_ratio > ratio:
            partition.log.compact(
                now_ms, config.delete_retention_ms, roll=overdue, min_lag_ms=config.min_compaction_lag_ms
            )


def _partitions(topics: Iterable[Topic]) -> list[Partition]:
    return [partition for topic in topics for partition in topic.partitions]
