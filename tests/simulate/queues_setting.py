"""What all work queues of a run have in common, and what each of them has of its own. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from asyncgroup.workqueue import Mode

__all__ = ["DEAD_TOPIC", "RETRY_TOPIC", "QueueSetting", "QueueSpec"]

RETRY_TOPIC: Final = "retry"
DEAD_TOPIC: Final = "dead"

PLAIN_MAX: Final = 16
"""Redeliveries of a queue with a retry topic only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """The settings of one work queue, and how it reads: `run`, `loop` (async for) or `batch` (batch_receive)."""

    style: str
    concurrency: int
    ack_group_time: float
    ack_group_size: int
    receiver_queue: int
    max_waiting: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSetting:
    """The settings that all work queues of a run share, and how their handlers behave.

    - `keys`: number of different record keys;
    - `max_redeliveries`: of the dead letter policy, None without one;
    - `ack_timeout`: seconds or None; `cancels_expired`: whether it cancels the handler;
    - `backoff`: initial delay, factor and longest delay after a nack;
    - `poison`, `rejected`, `reconsumed`, `failing`: shares of the records that always fail, are rejected, are reconsumed later, and
      fail once or twice; `hanging`: the share of failures that are a handler over its ack timeout;
    - `work_seconds`: the longest time that a handler usually takes;
    - `metadata_limit`: bytes of a commit's metadata;
    - `creates_topics`: whether the queues create the topics of copies, which exist otherwise.
    """

    mode: Mode
    keys: int
    out_of_order: bool
    max_redeliveries: int | None
    has_retry: bool
    ack_timeout: float | None
    cancels_expired: bool
    backoff: tuple[float, float, float]
    poison: float
    rejected: float
    reconsumed: float
    failing: float
    hanging: float
    work_seconds: float
    metadata_limit: int
    creates_topics: bool
    specs: Mapping[str, QueueSpec]
    """By member."""

    @property
    def has_order(self) -> bool:
        """Whether a record is delivered only after those before it, of its key or of its partition."""
        return self.mode.in_order or (self.mode is Mode.KEY_SHARED and not self.out_of_order)

    @property
    def has_dead_letters(self) -> bool:
        """Whether there is a dead letter topic."""
        return self.max_redeliveries is not None or self.has_retry

    @property
    def last_attempt(self) -> int | None:
        """The number of a record's last delivery; None without a limit."""
        if not self.has_dead_letters:
            return None
        return (PLAIN_MAX if self.max_redeliveries is None else self.max_redeliveries) + 1
