"""EndLimits: by when the handlers, the hooks and the last commit of a session, or of a revocation, have to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import CallerCancelled, GroupClosed, Rebalanced, SessionEnd

__all__ = ["MIN_RESERVE_SHARE", "EndLimits", "reserve_for"]

RESERVE_SHARE: Final = 0.2
"""Share of the shutdown time that is reserved for the phases after the handlers."""
RESERVE_MAX: Final = 5.0
"""Maximum of the reserve in seconds."""
MIN_RESERVE_SHARE: Final = 1 / 6
"""Minimum share of the reserve for each hook, the last commit and LeaveGroup, also after earlier phases took too long."""
MIN_HANDLER_SHARE: Final = 0.25
"""Minimum share of `rebalance_timeout` until the deadline, if the last successful heartbeat is too long ago."""


def reserve_for(timeout: float) -> float:
    """Return the seconds of a time limit reserved for the hooks, the last commit, and the LeaveGroup or JoinGroup."""
    return min(timeout * RESERVE_SHARE, RESERVE_MAX)


class EndLimits:
    """The deadline of a session's shutdown, brought forward by every more urgent cause.

    - Rebalanced: the coordinator waits for `rebalance_timeout` from the start of the rebalance, which was after the
      last successful heartbeat was sent (`last_stable_sent_at()`). The deadline counts from that heartbeat, so that
      the member rejoins before the coordinator removes it.
    - GroupClosed, CallerCancelled: `close_timeout` from now, for handlers, hooks, commit and LeaveGroup together.
    - any other cause: `rebalance_timeout` from now.

    `consume_claim` is cancelled before the deadline by the reserve (a fifth of the time, at most 5 s), hooks by half of the
    reserve, and the last commit by a quarter; the rest is for what follows. A hook or a commit that begins late still
    has a sixth of the reserve.

    A revocation while the session goes on has separate limits, `within` those of the session: if it ends in that
    time, the smaller of both count.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        last_stable_sent_at: Callable[[], float],
        within: EndLimits | None = None,
    ) -> None:
        self._config = config
        self._last_stable_sent_at = last_stable_sent_at
        self._within = within
        self.ending_since = float("inf")
        """Loop time of the first cause."""
        self.deadline = float("inf")
        """Loop time at which the shutdown should be complete."""
        self._reserve = 0.0  # seconds

    @property
    def rebalance_timeout(self) -> float:
        """Seconds that the group waits for a member in a rebalance."""
        return self._config.rebalance_timeout

    def add_cause(self, cause: SessionEnd) -> None:
        """Bring the deadline forward for this cause, the first or a further one."""
        config, now = self._config, asyncio.get_running_loop().time()
        total = config.rebalance_timeout
        if isinstance(cause, (GroupClosed, CallerCancelled)):
            total = config.close_timeout
            deadline = now + total
        elif isinstance(cause, Rebalanced):
            deadline = max(self._last_stable_sent_at() + total, now + total * MIN_HANDLER_SHARE)
        else:
            deadline = now + total
        self.ending_since = min(self.ending_since, now)
        if deadline < self.deadline:
            self.deadline, self._reserve = deadline, reserve_for(total)

    @property
    def handler_seconds(self) -> float:
        """Seconds from now until `consume_claim` is cancelled; at once if 0 or less."""
        left = self.deadline - self._reserve - asyncio.get_running_loop().time()
        return left if self._within is None else min(left, self._within.handler_seconds)

    @property
    def hook_seconds(self) -> float:
        """Seconds from now until hooks are cancelled, at least a sixth of the reserve.

        `setup` and `on_assigned` that run already are cancelled then; `on_revoked`, `on_lost` and `cleanup` have this time from
        their begin.
        """
        return self._left(1 / 2)

    @property
    def commit_seconds(self) -> float:
        """Seconds for the last commit if it begins now, at least a sixth of the reserve."""
        return self._left(1 / 4)

    def _left(self, kept: float) -> float:
        now = asyncio.get_running_loop().time()
        left = max(self.deadline - self._reserve * kept - now, self._reserve * MIN_RESERVE_SHARE)
        return left if self._within is None else min(left, self._within._left(kept))
