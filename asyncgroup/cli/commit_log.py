"""Log summaries of each group's offset commits, as `asyncgroup broker -v` does in addition to the broker's own log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from asyncgroup.counting import counted
from asyncgroup.error_codes import error_name
from asyncgroup.errors import UsageError
from asyncgroup.escaping import escaping_logger
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.broker import EmbeddedCluster, Exchange

__all__ = ["CommitSummary", "log_commits", "log_timestamps"]

log = escaping_logger(__name__)

INTERVAL: Final = 5.0
"""Seconds between two summaries."""

POLL_INTERVAL: Final = 0.25
"""Seconds between two reads of the history, which keeps a limited number of exchanges."""

MAX_PARTITIONS: Final = 6
"""Partitions that a summary names; it only counts the others."""


class _Lines(logging.Formatter):
    """A formatter that escapes line ends and control characters, which client ids and group ids may contain."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        text = super().formatMessage(record)
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def log_timestamps() -> None:
    """Begin each line of the log with the time of day instead of the program's name."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Lines("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))


@dataclass(slots=True)
class CommitSummary:
    """The commits of one group since the last summary."""

    commits: int = 0
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The last committed offset of each partition."""
    errors: Counter[str] = field(default_factory=Counter)
    """The number of refused partitions by error name."""

    def add(self, exchange: Exchange, topic_name: Callable[[Any], str]) -> None:
        """Add a commit and its response; `topic_name` returns the name of a topic in a request or a response."""
        self.commits += 1
        codes = {
            (topic_name(topic), partition.partition_index): partition.error_code
            for topic in exchange.response.topics
            for partition in topic.partitions
        }
        for topic in exchange.request.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic_name(topic), partition.partition_index)
                if code := codes.get(tp, 0):
                    self.errors[error_name(code)] += 1
                else:
                    self.offsets[tp] = partition.committed_offset

    def line(self, group_id: str) -> str:
        """Return the summary as one line of text."""
        named = [f"{tp} at {offset}" for tp, offset in sorted(self.offsets.items())]
        more = [f"{len(named) - MAX_PARTITIONS} more"] if len(named) > MAX_PARTITIONS else []
        parts = [counted(self.commits, "commit")]
        if named:
            parts.append(", ".join(named[:MAX_PARTITIONS] + more))
        parts += [f"{count} refused: {name}" for name, count in sorted(self.errors.items())]
        return f"group {group_id}: {'; '.join(parts)}"


class _CommitLogger:
    """Summarizes the commits that a cluster has answered. It consumes the cluster's history."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._history = cluster.history
        self._cluster = cluster
        self._names: dict[UUID, str] = {}
        self._summaries: dict[str, CommitSummary] = {}

    def _name(self, topic: Any) -> str:
        if topic.name:
            return str(topic.name)
        topic_id = topic.topic_id
        if topic_id not in self._names:
            try:
                self._names[topic_id] = self._cluster.topic(topic_id).name
            except UsageError:  # it was deleted
                return str(topic_id)
        return self._names[topic_id]

    def collect(self) -> None:
        """Add the commits that were answered since the last call, and clear the history."""
        for exchange in self._history.of("OffsetCommit", "TxnOffsetCommit", answered=True):
            self._summaries.setdefault(exchange.request.group_id, CommitSummary()).add(exchange, self._name)
        self._history.clear()

    def log_summaries(self) -> None:
        """Log one line per group, and start new summaries."""
        for group_id in sorted(self._summaries):
            log.info("%s", self._summaries[group_id].line(group_id))
        self._summaries.clear()

    async def run(self, interval: float) -> None:
        """Log summaries every `interval` seconds until cancelled."""
        time = asyncio.get_running_loop().time
        due = time() + interval
        while True:
            await asyncio.sleep(min(POLL_INTERVAL, interval))
            self.collect()
            if time() >= due:
                self.log_summaries()
                due = time() + interval


@asynccontextmanager
async def log_commits(cluster: EmbeddedCluster, interval: float = INTERVAL) -> AsyncIterator[None]:
    """Log the commits of groups every `interval` seconds and at the end. It clears the cluster's history."""
    logger = _CommitLogger(cluster)
    task = asyncio.create_task(logger.run(interval), name="log commits")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        logger.collect()
        logger.log_summaries()
