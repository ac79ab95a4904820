"""Retry policy of a partition's fetches: the pause after each failure, and the failure that is raised to the reader."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from asyncgroup.checks import DURATION_OR_ZERO
from asyncgroup.cluster.backoff import Backoff
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import RetriesExhausted
from asyncgroup.model import TopicPartition

__all__ = ["FetchFailures", "Retries"]

_log = logging.getLogger("asyncgroup.consumer")

WARN_EVERY: Final = 10
"""Every tenth consecutive failure of a partition is logged as a warning (as in sarama): retries are endless by default,
and an outage of days must show in the log."""


class FetchFailures:
    """Consecutive failures of a partition since its last successful fetch."""

    __slots__ = (
        "before_new_leader",
        "count",
        "leader",
        "metadata_outdated_since",
        "redirected",
        "reported",
        "since",
    )

    def __init__(self) -> None:
        self.count = 0
        self.before_new_leader = 0
        """How many of them a former leader caused; its pauses do not count against the new leader."""
        self.reported = 0
        """The count when an error was last raised to the reader."""
        self.redirected = False
        """Whether the partition was sent to another node without a pause since its last successful fetch."""
        self.since = float("-inf")
        """Loop time of the first failure at the current leader."""
        self.metadata_outdated_since = float("inf")
        """Loop time at which the metadata became older than the position; infinity if it is not older."""
        self.leader = (-1, -1)
        """Node and leader epoch that the metadata named at the last failure."""

    def __repr__(self) -> str:
        return f"<FetchFailures: {self.count}, {self.reported} of them reported>"

    def clear(self) -> None:
        """The partition was fetched."""
        self.count = 0
        self.before_new_leader = 0
        self.reported = 0
        self.metadata_outdated_since = float("inf")
        self.redirected = False

    def leader_changed(self, epoch: int) -> None:
        """Another leader will be asked: restart the pauses if its epoch proves that it is newer."""
        if epoch > self.leader[1]:
            self.before_new_leader = self.count


class Retries:
    """Applies `fetch_retry_max` and `fetch_retry_backoff`; `backoff` creates the default backoff."""

    def __init__(self, config: ConsumerConfig, backoff: Callable[[], Backoff]) -> None:
        self._retry_max = config.fetch_retry_max
        self._custom_backoff = config.fetch_retry_backoff
        self._backoff = backoff
        self._has_logged_bad_backoff = False

    def record_failure(
        self, tp: TopicPartition, failures: FetchFailures, error: Exception
    ) -> RetriesExhausted | None:
        """Count a failure; return the error to raise to the reader once `fetch_retry_max` is exceeded, else None."""
        failures.count += 1
        if failures.count % WARN_EVERY == 0:
            _log.warning("%s: %d failures in a row, the last one: %s", tp, failures.count, error)
        tries = failures.count - failures.reported
        if self._retry_max is None or tries <= self._retry_max:
            return None
        failures.reported = failures.count
        return RetriesExhausted(tp, tries, error)

    def record_raised(self, failures: FetchFailures) -> None:
        """Count a failure whose error is raised to the reader unchanged."""
        failures.count += 1
        failures.reported = failures.count

    def pause(self, failures: FetchFailures) -> float:
        """Return the seconds to wait after the last failure."""
        earlier = max(0, failures.count - 1)
        if self._custom_backoff is not None:
            try:
                pause = self._custom_backoff(earlier)
                if DURATION_OR_ZERO[0](pause) and math.isfinite(pause):
                    return float(pause)
                problem: object = f"it returned {pause!r}"
            except Exception as error:  # noqa: BLE001  a user's function must not stop the fetching
                problem = error
            self._log_bad_backoff(problem)
        backoff = self._backoff()
        backoff.failures = max(0, earlier - failures.before_new_leader)
        return backoff.next()

    def _log_bad_backoff(self, problem: object) -> None:
        """Log once per client: the function may be wrong at every failure of every partition."""
        if not self._has_logged_bad_backoff:
            self._has_logged_bad_backoff = True
            _log.error(
                "fetch_retry_backoff %r did not return a pause in seconds; using retry_backoff instead: %r",
                self._custom_backoff,
                problem,
            )
