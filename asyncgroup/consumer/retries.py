"""Failures of a partition one after another: how long to wait after each, and when its reader must hear of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from asyncgroup.checks import PAUSE
from asyncgroup.cluster.backoff import Backoff
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import RetriesExhausted
from asyncgroup.model import TopicPartition

__all__ = ["Retries", "Trouble"]

_log = logging.getLogger("asyncgroup.consumer")

LOUD: Final = 10
"""Every so many failures in a row are a warning in the log (as in sarama: silence for days is worse)."""


class Trouble:
    """The failures of a partition since it was last fetched.

    `since` is the loop's time of the first one; `leader` the node and the leader epoch that the metadata named at the
    last one; `earlier` how many of them were a former leader's, whose pauses do not count against its successor.
    `outdated_since` is the loop's time from which on the metadata is older than the position; infinity if it is not.
    """

    __slots__ = ("earlier", "failures", "leader", "moved", "outdated_since", "since", "told")

    def __init__(self) -> None:
        self.failures = 0
        self.earlier = 0
        self.told = 0
        self.moved = False
        self.since = float("-inf")
        self.outdated_since = float("inf")
        self.leader = (-1, -1)

    def __repr__(self) -> str:
        return f"<Trouble: {self.failures} failures, {self.told} of them told>"

    def clear(self) -> None:
        """It was fetched."""
        self.failures = self.earlier = self.told = 0
        self.outdated_since = float("inf")
        self.moved = False

    def leave_leader(self, epoch: int) -> None:
        """Another leader will be asked: pauses begin again, if its epoch proves that it is a newer one."""
        if epoch > self.leader[1]:
            self.earlier = self.failures


class Retries:
    """`fetch_retry_max` and `fetch_retry_backoff` of a client; `backoff()` makes the default's pauses."""

    def __init__(self, config: ConsumerConfig, backoff: Callable[[], Backoff]) -> None:
        self._most, self._custom, self._backoff = config.fetch_retry_max, config.fetch_retry_backoff, backoff
        self._has_complained = False

    def failed(self, tp: TopicPartition, trouble: Trouble, error: Exception) -> RetriesExhausted | None:
        """Count a failure; the error that the reader must get, if it is one too many."""
        trouble.failures += 1
        if trouble.failures % LOUD == 0:
            _log.warning("%s: %d failures in a row, the last one: %s", tp, trouble.failures, error)
        tries = trouble.failures - trouble.told
        if self._most is None or tries <= self._most:
            return None
        trouble.told = trouble.failures
        return RetriesExhausted(tp, tries, error)

    def raised(self, trouble: Trouble) -> None:
        """Count a failure that the reader gets as it is."""
        trouble.failures += 1
        trouble.told = trouble.failures

    def pause(self, trouble: Trouble) -> float:
        """Seconds to wait after the last failure."""
        failures = max(0, trouble.failures - 1)
        if self._custom is not None:
            try:
                pause = self._custom(failures)
                if PAUSE[0](pause) and math.isfinite(pause):
                    return float(pause)
                problem: object = f"it gave {pause!r}"
            except Exception as error:  # noqa: BLE001  a user's function must not stop the fetching
                problem = error
            self._complain(problem)
        backoff = self._backoff()
        backoff.failures = max(0, failures - trouble.earlier)
        return backoff.next()

    def _complain(self, problem: object) -> None:
        """Once: it may be wrong at every failure of every partition."""
        if not self._has_complained:
            self._has_complained = True
            _log.error(
                "fetch_retry_backoff %r gives no pause, retry_backoff is used: %r", self._custom, problem
            )
