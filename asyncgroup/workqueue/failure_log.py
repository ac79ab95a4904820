"""FailureLog: log exceptions of handlers with tracebacks, at a limited rate: a traceback is slower than a delivery."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from asyncgroup.lifecycle import describe_error
from asyncgroup.log_events import log_fields
from asyncgroup.topic_partition import TopicPartition
from asyncgroup.workqueue.delivery import Delivery

__all__ = ["FailureLog"]

_log = logging.getLogger("asyncgroup.workqueue")

INTERVAL: Final = 1.0
"""Minimum seconds between two warnings: a traceback takes as long as dozens of deliveries."""


class FailureLog:
    """Logs a failed delivery with its traceback (WARNING), then for a second only their number; with DEBUG all of them."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._next_at = 0.0
        self._omitted = 0

    def __repr__(self) -> str:
        return f"<FailureLog: {self._omitted} not logged>"

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Log that the handler of a delivery has raised `error`."""
        now = self._time()
        if now < self._next_at:
            self._omitted += 1
            _log.debug("the handler of %r raised %s", delivery, describe_error(error), exc_info=error)
            return
        more = f" ({self._omitted} more since the last message)" if self._omitted else ""
        self._next_at, self._omitted = now + INTERVAL, 0
        record = delivery.record
        tp = TopicPartition(record.topic, record.partition)
        _log.warning(
            "the handler of %r raised %s%s",
            delivery,
            describe_error(error),
            more,
            exc_info=error,
            extra=log_fields("delivery_failed", tp=tp, offset=record.offset, error=error),
        )
