"""SendTimers: closes the open batch of a producer after its delay, ends messages after `send_timeout`, and completes flushes.

A timer that finds that it is early is set again; it is not moved by each message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from asyncgroup.pulsar.producer.send_queue import SendQueue

__all__ = ["SendTimers"]


LAST_ATTEMPT: Final = 0.1
"""Seconds before the end of `send_timeout` at which a connection is tried in any case, as in Java's client."""


class SendTimers:
    """The timers of a queue. `too_old` returns the error of messages that wait for longer than `send_timeout`; 0: never."""

    def __init__(
        self, queue: SendQueue, batch_delay: float, send_timeout: float, too_old: Callable[[], Exception]
    ) -> None:
        self._queue = queue
        self._delay = batch_delay
        self._timeout = send_timeout
        self._too_old = too_old
        self._loop = asyncio.get_running_loop()
        self._batch: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._has_caller = False  # a caller waits for a message of the open batch
        self._closes_soon = False  # the open batch is closed in the next turn of the loop
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<SendTimers {len(self._flushes)} callers wait for all messages>"

    def after_message(self, *, is_awaited: bool) -> None:
        """A message was added; its caller waits for it if `is_awaited`."""
        queue = self._queue
        if queue.batch_since is not None:
            if is_awaited:
                self._after_awaited()
            if self._batch is None:
                self._batch = self._loop.call_later(self._delay, self._on_batch_due)
        if self._expiry is None and queue.pending:
            self._watch_expiry()

    def after_receipt(self) -> None:
        """Sends are done."""
        if self._flushes:
            first = self._queue.pending.first_number
            while self._flushes and self._flushes[0][0] <= first:
                _, done = self._flushes.popleft()
                if not done.done():
                    done.set_result(None)
        if self._has_caller and not self._queue.pending:
            self.close_batch()

    def close_batch(self) -> None:
        """Send the open batch now."""
        self._has_caller = False
        self._queue.close_batch()
        if self._expiry is None:
            self._watch_expiry()

    def flushed(self) -> asyncio.Future[None] | None:
        """Send the open batch, and return a future that is done when all messages until now are; None if they are."""
        self.close_batch()
        if not self._queue.pending:
            return None
        done: asyncio.Future[None] = self._loop.create_future()
        self._flushes.append((self._queue.pending.next_number, done))
        return done

    def cancel(self) -> None:
        """Do nothing more by itself."""
        for timer in (self._batch, self._expiry):
            if timer is not None:
                timer.cancel()
        self._batch = self._expiry = None

    # --- the open batch -----------------------------------------------------------------------------------------------

    def _after_awaited(self) -> None:
        self._has_caller = True
        if not self._closes_soon and not self._queue.pending:
            # nothing is in flight, so that waiting for more messages only delays: those of this turn are taken
            self._closes_soon = True
            self._loop.call_soon(self._close_soon)

    def _close_soon(self) -> None:
        self._closes_soon = False
        self.close_batch()

    def _on_batch_due(self) -> None:
        self._batch = None
        since = self._queue.batch_since
        if since is None:
            return
        due = since + self._delay
        if due > self._loop.time():  # the batch of the timer was full before
            self._batch = self._loop.call_at(due, self._on_batch_due)
        else:
            self.close_batch()

    # --- the send timeout ---------------------------------------------------------------------------------------------

    @property
    def last_attempt_at(self) -> float:
        """The loop time at which the oldest message can still be sent before it is too old; infinity without one."""
        oldest = self._queue.pending.oldest
        return inf if oldest is None or not self._timeout else oldest + self._timeout - LAST_ATTEMPT

    def _watch_expiry(self) -> None:
        oldest = self._queue.pending.oldest
        if self._timeout and oldest is not None:
            self._expiry = self._loop.call_at(oldest + self._timeout, self._on_expiry)

    def _on_expiry(self) -> None:
        """Fail what is too old; independent of the task that reconnects."""
        self._expiry = None
        oldest = self._queue.pending.oldest
        now = self._loop.time()
        # compared as the timer is set: rounding must not leave the oldest one for a timer that is due at once
        if oldest is not None and oldest + self._timeout <= now:
            self._queue.expire(max(oldest, now - self._timeout), self._too_old)
            self.after_receipt()
        if self._expiry is None:
            self._watch_expiry()
