"""When compacted logs are cleaned (Kafka's `LogCleaner` and `LogCleanerManager`); what cleaning does is in `compaction`.

Every `log.cleaner.backoff.ms` the logs are looked at. As long as one is dirty enough the filthiest is cleaned, each in a
step of its own on the loop; then compacted logs delete what retention asks for and what is before their start. A log is
dirty enough if more than `min.cleanable.dirty.ratio` of what could be cleaned was never cleaned, or if something of that
is older than `max.compaction.lag.ms`. The active segment, what is not stable, and segments with records younger than
`min.compaction.lag.ms` can't be cleaned. A log that cannot be read is left alone from then on.

A cluster in memory cleans only topics that ask for it themselves, not the brokers' own; see `Retention`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.broker.clock import WallClock
from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.interfaces import Timers
from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.retention import retain
from asyncgroup.broker.segmented_log import ToClean
from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.escaping import escaping_logger

__all__ = ["BACKOFF", "LogCleaner"]

log = escaping_logger(__name__)

BACKOFF: Final = 15.0
"""Kafka's default of `log.cleaner.backoff.ms`, in seconds."""

_BACKOFF_KEY: Final = "log.cleaner.backoff.ms"
_TIMER: Final = ("log cleaner",)


class LogCleaner:
    """Cleans the logs of a cluster. `everything`: those of the brokers' own topics as well.

    `changed` is called with each partition whose log became shorter or was rewritten, so that waiting readers look again.
    """

    def __init__(
        self,
        controller: Controller,
        timers: Timers,
        clock: WallClock,
        changed: Callable[[Partition], None],
        *,
        everything: bool = False,
    ) -> None:
        self._controller = controller
        self._timers = timers
        self._clock = clock
        self._changed = changed
        self._everything = everything
        self._backoff: float | None = None
        """Seconds between two rounds, as the timer was set; None while no log is looked at."""
        self._uncleanable: set[Partition] = set()
        self._failed: set[Partition] = set()  # by the disk, in this round
        if everything:
            self._run_later()

    def __repr__(self) -> str:
        return f"<LogCleaner {'not begun' if self._backoff is None else 'running'}, {len(self._uncleanable)} uncleanable>"

    def configured(self, topic: Topic) -> None:
        """Settings of a topic, or those of all topics, have changed: start when the first one asks for compaction.

        Another backoff counts from now on, not from the next round on (`LogCleaner.reconfigure`).
        """
        changed = self._may_clean(topic) if self._backoff is None else self._backoff != self._given_backoff()
        if changed:
            self._run_later()

    def _may_clean(self, topic: Topic) -> bool:
        own = self._everything or not topic.is_internal
        return own and any(partition.config.compact for partition in topic.partitions)

    def _given_backoff(self) -> float:
        given = self._controller.settings.cluster.get(_BACKOFF_KEY)
        # Kafka allows 0; the loop needs a moment for others.
        return BACKOFF if given is None else max(int(given) / 1000, 0.001)

    def _run_later(self) -> None:
        self._backoff = self._given_backoff()
        self._timers.schedule(_TIMER, self._backoff, self._run)

    def _run(self) -> None:
        """Clean the filthiest log; the next one in another step, or after the backoff if no log is dirty enough."""
        self._run_later()  # first: an error below must not end the cleaning
        filthiest = self._filthiest()
        if filthiest is None:
            self._delete_old_segments()
            self._failed.clear()
            return
        self._clean(*filthiest)
        self._timers.schedule(_TIMER, 0.0, self._run)

    def _partitions(self) -> list[Partition]:
        self._uncleanable = {one for one in self._uncleanable if not one.deleted}
        return [
            partition
            for topic in self._controller.topics.values()
            if self._may_clean(topic)
            for partition in topic.partitions
            if partition.config.compact and partition not in self._uncleanable
        ]

    def _filthiest(self) -> tuple[Partition, ToClean] | None:
        """The log with the largest share of dirty bytes of those that are to be cleaned (`grabFilthiestCompactedLog`)."""
        now_ms = self._clock()
        best: tuple[Partition, ToClean] | None = None
        for partition in self._partitions():
            if partition in self._failed:
                continue
            config = partition.config
            found = partition.log.to_clean(now_ms, config.min_compaction_lag_ms)
            overdue = found.dirty_bytes > 0 and found.earliest_dirty < now_ms - config.max_compaction_lag_ms
            if (overdue or found.ratio > config.min_cleanable_dirty_ratio) and (
                best is None or found.ratio > best[1].ratio
            ):
                best = partition, found
        return best

    def _clean(self, partition: Partition, found: ToClean) -> None:
        place, config, size = f"{partition.topic}-{partition.index}", partition.config, partition.log.size
        try:
            partition.log.clean(self._clock(), found.end_offset, config.delete_retention_ms)
        except StorageError as error:
            log.error("cleaning %s failed, it is tried again: %s", place, error)
            self._failed.add(partition)
        except Exception as error:  # noqa: BLE001  a damaged batch can raise any error
            log.error("%s cannot be cleaned and is left alone from now on: %s", place, error)
            self._uncleanable.add(partition)
        else:
            log.info(
                "cleaned %s up to %d: %d of %d bytes left", place, found.end_offset, partition.log.size, size
            )
        self._changed(partition)

    def _delete_old_segments(self) -> None:
        for partition in self._partitions():
            retain(partition, self._clock(), self._changed)
