"""Scheduling of log compaction (Kafka's `LogCleaner` and `LogCleanerManager`); `compaction` has the cleaning itself.

The logs are checked every `log.cleaner.backoff.ms`. While any log is dirty enough, the filthiest one is cleaned,
one per step on the loop; then compacted logs delete the segments beyond retention or before the log start offset. A
log is dirty enough if the share of uncleaned bytes among its cleanable bytes exceeds `min.cleanable.dirty.ratio`,
or if uncleaned records are older than `max.compaction.lag.ms`. The active segment, records above the last stable
offset, and segments with records younger than `min.compaction.lag.ms` cannot be cleaned. A log that cannot be read
is never cleaned again.

A cluster in memory does not clean internal topics.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.segment_cleaner import LogToClean
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.broker.storage.retention import ClusterLogs
from asyncgroup.escaping import escaping_logger

__all__ = ["BACKOFF", "LogCleaner"]

log = escaping_logger(__name__)

BACKOFF: Final = 15.0
"""Kafka's default of `log.cleaner.backoff.ms`, in seconds."""

_BACKOFF_KEY: Final = "log.cleaner.backoff.ms"
_TIMER: Final = ("log cleaner",)


class LogCleaner:
    """Cleans the compacted logs of a cluster."""

    def __init__(self, logs: ClusterLogs) -> None:
        self._logs = logs
        self._backoff: float | None = None
        """Seconds between two rounds, as the timer was set; None before the first log to clean exists."""
        self._uncleanable: set[Partition] = set()
        self._failed: set[Partition] = set()  # partitions with a disk error in this round
        if logs.all_topics:
            self._run_later()

    def __repr__(self) -> str:
        return f"<LogCleaner {'not begun' if self._backoff is None else 'running'}, {len(self._uncleanable)} uncleanable>"

    def configs_changed(self, topic: Topic) -> None:
        """Start the timer with the first topic that needs compaction; restart it if the backoff has changed.

        A new backoff applies at once, not from the next round (`LogCleaner.reconfigure`).
        """
        changed = self._may_clean(topic) if self._backoff is None else self._backoff != self._given_backoff()
        if changed:
            self._run_later()

    def _may_clean(self, topic: Topic) -> bool:
        own = self._logs.all_topics or not topic.is_internal
        return own and any(partition.config.compact for partition in topic.partitions)

    def _given_backoff(self) -> float:
        given = self._logs.controller.configs.cluster.get(_BACKOFF_KEY)
        # Kafka allows 0; here the timer must not keep the loop busy.
        return BACKOFF if given is None else max(int(given) / 1000, 0.001)

    def _run_later(self) -> None:
        self._backoff = self._given_backoff()
        self._logs.timers.schedule(_TIMER, self._backoff, self._run)

    def _run(self) -> None:
        """Clean the filthiest log, then schedule the next: at once, or after the backoff if no log is dirty enough."""
        self._run_later()  # first, so that an exception below does not end the cleaning
        filthiest = self._filthiest()
        if filthiest is None:
            for partition in self._partitions():
                self._logs.delete_old_segments(partition)
            self._failed.clear()
            return
        self._clean(*filthiest)
        self._logs.timers.schedule(_TIMER, 0.0, self._run)

    def _partitions(self) -> list[Partition]:
        self._uncleanable = {one for one in self._uncleanable if not one.deleted}
        return [
            partition
            for topic in self._logs.controller.topics.values()
            if self._may_clean(topic)
            for partition in topic.partitions
            if partition.config.compact and partition not in self._uncleanable
        ]

    def _filthiest(self) -> tuple[Partition, LogToClean] | None:
        """Return the log with the largest dirty ratio among those dirty enough (`grabFilthiestCompactedLog`)."""
        now_ms = self._logs.clock()
        best: tuple[Partition, LogToClean] | None = None
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

    def _clean(self, partition: Partition, found: LogToClean) -> None:
        place, config, size = f"{partition.topic}-{partition.index}", partition.config, partition.log.size
        try:
            partition.log.clean(self._logs.clock(), found.end_offset, config.delete_retention_ms)
        except KafkaStorageError as error:
            log.error("cleaning %s failed and will be retried: %s", place, error)
            self._failed.add(partition)
        except Exception as error:  # noqa: BLE001  a damaged batch can raise any error
            log.error("%s cannot be cleaned and is skipped from now on: %s", place, error)
            self._uncleanable.add(partition)
        else:
            log.info(
                "cleaned %s up to offset %d: %d of %d bytes left",
                place,
                found.end_offset,
                partition.log.size,
                size,
            )
        self._logs.changed(partition)
