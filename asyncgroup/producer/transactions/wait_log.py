"""Log a request that is repeated for long, so that its caller does not wait in silence."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from asyncgroup.errors import AsyncGroupError

__all__ = ["WaitLog"]

_log = logging.getLogger("asyncgroup.producer")

FIRST_LOG: Final = 5.0
"""Seconds for which a request is repeated before that is logged."""

LOG_INTERVAL: Final = 30.0
"""Seconds between two lines about a request that is repeated."""


class WaitLog:
    """Logs a request that is repeated for long, at a bounded rate; `limit` is in seconds from now."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._begun_at = asyncio.get_running_loop().time()
        self._log_at = self._begun_at + FIRST_LOG

    def __repr__(self) -> str:
        return f"<WaitLog: the next line at {self._log_at:.3f}>"

    def on_repeat(self, error: AsyncGroupError | None) -> None:
        """The request has failed with this error, and is sent again."""
        now = asyncio.get_running_loop().time()
        if now >= self._log_at:
            self._log_at = now + LOG_INTERVAL
            waited = now - self._begun_at
            _log.warning(
                "a request has failed for %.0f s, and is repeated for at most %g s: %s",
                waited,
                self._limit,
                error,
            )
