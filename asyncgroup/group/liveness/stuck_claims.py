"""StuckClaims: which claims show no progress for `max_poll_interval` while their handler works on a record. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from asyncgroup.errors import ClaimStuck
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.group.sessions.claim import Claim

__all__ = ["CHECKS", "StuckClaims"]

CHECKS: Final = 10
"""How often progress is compared in one `max_poll_interval`: a stuck claim is found at most a tenth of it late."""


class StuckClaims:
    """Compares the progress of claims from time to time, so that nothing is counted for each record.

    Only a claim whose handler works on a record can be stuck: not one that waits for records, is paused, or has not read
    anything yet. `limit` is in seconds; 0 finds nothing. It may also be called from the heartbeat thread: that reads the
    claims only while the event loop is blocked, so they do not change in that time, except by the handler that blocks it.
    """

    def __init__(self, group_id: str, limit: float, claims: Callable[[], Iterable[Claim]]) -> None:
        self._group_id = group_id
        self.limit = limit
        self._claims = claims
        self._lock = threading.Lock()
        self._since: dict[TopicPartition, tuple[tuple[object, ...], float]] = {}
        """By partition: the progress at the last check, and the time at which that value was seen first."""

    def __repr__(self) -> str:
        return f"<StuckClaims: {len(self._since)} at work, limit {self.limit:g} s>"

    @property
    def period(self) -> float:
        """Seconds between two checks; infinity if there is nothing to find."""
        return self.limit / CHECKS if self.limit else float("inf")

    def find(self, now: float) -> ClaimStuck | None:
        """Compare the progress at loop time `now`; return the error of the claim that is stuck for longest, if any is."""
        if not self.limit:
            return None
        with self._lock:
            before, self._since = self._since, {}
            for claim in self._claims():
                state, tp = claim._state, claim.tp
                if state.holds_record and not state.is_renewed(now):
                    progress = state.progress
                    known = before.get(tp)
                    same = known is not None and known[0] == progress
                    self._since[tp] = known if known is not None and same else (progress, now)
            if not self._since:
                return None
            tp, (_, since) = min(self._since.items(), key=lambda item: (item[1][1], item[0]))
        seconds = now - since
        return ClaimStuck(self._group_id, tp, seconds, self.limit) if seconds >= self.limit else None
