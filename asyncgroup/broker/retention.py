"""Deleting what `retention.ms` and `retention.bytes` of topics don't keep, now and every so often (Kafka's
`LogManager.cleanupLogs`). Compacted logs are the `log_cleaner`'s.

A cluster in memory looks by itself at topics only that have such a setting of their own: what is never cleaned up by
default is what tests expect, and theirs are often records from 1970. A cluster on disk looks at all, as Kafka does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.broker.clock import WallClock
from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.interfaces import Timers
from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.errors import AsyncGroupError

__all__ = ["CHECK_INTERVAL", "Retention", "retain"]

log = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 300.0
"""Kafka's default of `log.retention.check.interval.ms`, in seconds."""

_SETTINGS: Final = frozenset({"cleanup.policy", "retention.bytes", "retention.ms"})


class Retention:
    """Looks at the logs every `interval` seconds; `everything`: at those of all topics, see above.

    `changed` is called with each partition whose log became shorter, so that waiting readers look again.
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
            if not partition.config.compact:  # else the cleaner does it
                retain(partition, self._clock(), self._changed)

    def apply(self) -> None:
        """Delete what the settings of all topics, Kafka's defaults included, no longer keep."""
        for partition in _partitions(self._controller.topics.values()):
            retain(partition, self._clock(), self._changed)

    def compact(self, topic: Topic) -> None:
        """Compact a topic, whatever its policy: all that is stable and in its logs now."""
        for partition in topic.partitions:
            partition.log.compact(self._clock(), partition.config.delete_retention_ms)
            self._changed(partition)


def _partitions(topics: Iterable[Topic]) -> list[Partition]:
    return [partition for topic in topics for partition in topic.partitions]


def retain(partition: Partition, now_ms: int, changed: Callable[[Partition], None]) -> None:
    """Delete what the partition's settings no longer keep; a disk that fails is logged, and tried again the next time."""
    config, before = partition.config, partition.log.start_offset
    try:
        if config.delete:
            partition.log.retain(now_ms, config.retention_ms, config.retention_bytes)
        else:
            partition.log.delete_dead_segments()
    except AsyncGroupError as error:
        log.error("cleaning up %s-%d failed: %s", partition.topic, partition.index, error)
    if partition.log.start_offset > before:
        log.info("%s-%d begins at %d now", partition.topic, partition.index, partition.log.start_offset)
        changed(partition)
