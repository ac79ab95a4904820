"""By when the end of a session has to be through with each of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import CallerCancelled, GroupClosed, Rebalanced, SessionEnd

__all__ = ["EndLimits", "reserve_for"]

RESERVE_SHARE: Final = 0.2
RESERVE_MAX: Final = 5.0
MIN_RESERVE_SHARE: Final = 1 / 6
"""What every part has of the reserve, however late it begins: behind a handler that swallowed its cancellation, too."""
MIN_HANDLER_SHARE: Final = 0.25
"""The part of `rebalance_timeout` that handlers have at least, where the last good heartbeat is too old to count from."""


def reserve_for(timeout: float) -> float:
    """The seconds of a time limit that handlers must leave to the hooks, the last commit, and the leave or join."""
    return min(timeout * RESERVE_SHARE, RESERVE_MAX)


class EndLimits:
    """One deadline for a whole end, brought forward by every more urgent cause.

    - Rebalanced: the coordinator waits for `rebalance_timeout` from the beginning of the rebalance, which lies behind
      the last heartbeat that went well (`last_stable_sent_at()`): so the deadline counts from that one, and the member joins
      again before it is given up.
    - GroupClosed, CallerCancelled: `close_timeout` from now, for handlers, hooks, commit and leave together.
    - any other cause: `rebalance_timeout` from now.

    Handlers end a reserve before the deadline (a fifth of the time, at most 5 s); half of the reserve belongs to the
    hooks, the rest to the commit and to what follows it.
    """

    def __init__(self, config: ConsumerConfig, last_stable_sent_at: Callable[[], float]) -> None:
        self._config, self._last_stable_sent_at = config, last_stable_sent_at
        self.ending_since = self.deadline = float("inf")
        self._reserve = 0.0

    def add_cause(self, cause: SessionEnd) -> None:
        """The session ends for this cause (perhaps one more)."""
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
        """Seconds from now until handlers are cancelled; 0 or less: at once."""
        return self.deadline - self._reserve - asyncio.get_running_loop().time()

    @property
    def hook_seconds(self) -> float:
        """Seconds that `on_revoked`, `on_lost` and `cleanup` have, if they begin now."""
        return self._left(1 / 2)

    @property
    def commit_seconds(self) -> float:
        """Seconds that the last commit has, if it begins now."""
        return self._left(1 / 4)

    def _left(self, kept: float) -> float:
        now = asyncio.get_running_loop().time()
        return max(self.deadline - self._reserve * kept - now, self._reserve * MIN_RESERVE_SHARE)
