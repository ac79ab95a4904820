"""AckSender: sends a consumer's acknowledgements in groups, and waits for the answers.

Each command asks for an answer. So an acknowledgement that is lost with its connection, or refused, is sent again, and a caller
of `flush` knows when the broker has its acknowledgements. Nothing here waits for a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, NamedTuple

from asyncgroup.errors import ConnectionLost
from asyncgroup.lifecycle import await_shared, mark_retrieved
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.consumer.acks.pending_acks import AckBatch, PendingAcks
from asyncgroup.pulsar.consumer.acks.unacked import AckedEntry, EntryKey
from asyncgroup.pulsar.wire.commands import Command

__all__ = ["AckFailure", "AckSender"]

RETRY_AFTER: Final = 1.0
"""Seconds after which acknowledgements that the broker has refused are sent again."""


class AckFailure(NamedTuple):
    """Acknowledgements in a row that the broker has refused or not answered."""

    since: float
    """Loop time of the first one."""
    times: int
    """The number of commands that have failed."""
    error: Exception
    """The last error."""


class _Round:
    """The commands that were sent at one time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.done.add_done_callback(mark_retrieved)  # most rounds have no caller that waits
        self.unanswered = 0
        self.successor: _Round | None = None  # has its acknowledgements, if the connection ended

    def answered(self) -> None:
        self.unanswered -= 1
        if not self.unanswered and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class AckSender:
    """The acknowledgements of one consumer. `on_error(error)` is called for those that the broker has refused.

    `on_answer` is called with the number of entries of each command that was answered, and why it was refused.
    """

    def __init__(
        self,
        consumer_id: int,
        name: str,
        pending: PendingAcks,
        timeout: float,
        on_error: Callable[[Exception], object],
        on_answer: Callable[[int, Exception | None], object] | None = None,
    ) -> None:
        self._id = consumer_id
        self._name = name
        self._about = f"{name}: ACK"
        self._pending = pending
        self._timeout = timeout
        self._on_error = on_error
        self._on_answer = on_answer
        self._loop = asyncio.get_running_loop()
        self._connection: PulsarConnection | None = None
        self._next: _Round | None = None  # of what is pending
        self._rounds: dict[_Round, None] = {}  # in flight
        self._closed: Exception | None = None
        self.failure: AckFailure | None = None
        """Since when acknowledgements fail; None if the last answer was a confirmation."""
        self.is_held = False
        """Whether nothing is sent, as during a seek."""

    def __repr__(self) -> str:
        return f"<AckSender {self._name}: {self._pending!r}>"

    @property
    def due_at(self) -> float:
        """The loop time at which to call `send`; infinity for none, as without a connection."""
        return inf if self._connection is None or self.is_held else self._pending.due_at

    def is_partly_acked(self, key: EntryKey) -> bool:
        """See `PendingAcks.is_partly_acked`."""
        return self._pending.is_partly_acked(key)

    def add(self, acked: AckedEntry, *, cumulative: bool = False) -> bool:
        """Add an acknowledgement; one that is due at once is sent. Return whether `due_at` is now earlier."""
        pending, now = self._pending, self._loop.time()
        before = pending.due_at
        (pending.add_cumulative if cumulative else pending.add)(acked, now)
        if pending.due_at <= now:
            self.send()
        return pending.due_at < before

    def send(self) -> None:
        """Send what is pending now, if there is a connection."""
        connection = self._connection
        if connection is None or connection.is_closed or self.is_held:
            return
        found: _Round | None = None
        while (batch := self._pending.take()) is not None:
            if found is None:
                found, self._next = self._round_of_pending(), None
                self._rounds[found] = None
            found.unanswered += 1
            connection.call_with_answer(
                self._about,
                partial(batch.command, self._id),
                self._timeout,
                partial(self._answered, connection, batch, found),
            )

    def _round_of_pending(self) -> _Round:
        if self._next is None:
            self._next = _Round(self._loop)
            if self._closed is not None:
                self._next.fail(self._closed)
        return self._next

    def _answered(
        self,
        connection: PulsarConnection,
        batch: AckBatch,
        sent: _Round,
        _: Command | None,
        error: Exception | None,
    ) -> None:
        if error is None:
            self.failure = None
            self._pending.confirm(batch.number)
            sent.answered()
            if self._on_answer is not None:
                self._on_answer(batch.size, None)
        elif connection.is_closed:
            return  # `detach` follows: all that was not confirmed is pending again
        elif self._closed is None and self._pending.fail(batch.number, self._loop.time() + RETRY_AFTER):
            before = self.failure or AckFailure(self._loop.time(), 0, error)
            self.failure = AckFailure(before.since, before.times + 1, error)
            sent.fail(error)
            if self._on_answer is not None:
                self._on_answer(batch.size, error)
            self._on_error(error)
        if sent.done.done():
            self._rounds.pop(sent, None)

    async def flush(self) -> None:
        """Return when the broker has confirmed all acknowledgements that were made before, after reconnects if needed.

        Raises PulsarServerError and RequestTimedOut; what was not confirmed is sent again later. Raises ClosedError.
        """
        waiting = list(self._rounds)
        if len(self._pending):
            waiting.append(self._round_of_pending())
        self.send()
        while waiting:
            each = waiting.pop()
            try:
                await await_shared(each.done)
            except ConnectionLost:
                if each.successor is None:
                    raise
                waiting.append(each.successor)

    # --- life -----------------------------------------------------------------------------------------------------------

    def attach(self, connection: PulsarConnection) -> None:
        """There is a connection: send what is pending, before the consumer asks for messages."""
        self._connection = connection
        self._pending.reconnect(self._loop.time())
        self.send()

    def detach(self) -> None:
        """The connection ended, or the broker has closed the consumer: what is not confirmed is pending again."""
        self._connection = None
        self._pending.disconnect()
        for sent in self._rounds:
            sent.successor = self._round_of_pending()
            sent.fail(ConnectionLost(f"{self._name}: the connection ended before the answer to ACK"))
        self._rounds.clear()

    def clear(self) -> None:
        """The subscription continues elsewhere: nothing is left to acknowledge."""
        self._pending.clear()
        for each in (*self._rounds, *([self._next] if self._next else [])):
            if not each.done.done():
                each.done.set_result(None)
        self._rounds.clear()
        self._next = None

    def close(self, error: Exception) -> None:
        """Send nothing more; callers of `flush` get the error."""
        self._connection = None
        self._closed = error
        for each in (*self._rounds, *([self._next] if self._next else [])):
            each.fail(error)
        self._rounds.clear()
        self._next = None
