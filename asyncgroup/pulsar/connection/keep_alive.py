"""PingTimer: asks a silent broker whether it lives, and ends the connection if it does not answer (Pulsar's `PulsarHandler`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["PingTimer"]


class PingTimer:
    """Calls `ping` in each interval, and `expired` instead if nothing has arrived since the last ping.

    `received` returns the number of bytes that have arrived: also a part of a large frame shows that the broker lives.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        interval: float,
        received: Callable[[], int],
        ping: Callable[[], object],
        expired: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._interval = interval  # seconds
        self._received = received
        self._ping = ping
        self._expired = expired
        self._pinged_at = -1  # bytes received when the last ping was sent, -1 before the first
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<PingTimer each {self._interval:g} s: {'stopped' if self._timer is None else 'running'}>"

    def start(self) -> None:
        """Begin the first interval."""
        self._timer = self._loop.call_later(self._interval, self._check)

    def stop(self) -> None:
        """End it; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        received = self._received()
        if received == self._pinged_at:
            self._expired()
            return
        self._pinged_at = received
        self.start()
        self._ping()
