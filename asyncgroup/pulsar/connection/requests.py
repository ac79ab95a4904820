"""PendingRequests: the requests of a connection that wait for their answers, each with its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Final

from asyncgroup.errors import RequestTimedOut
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandAck,
    CommandAckResponse,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandError,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandProducer,
    CommandProducerSuccess,
    CommandSeek,
    CommandSubscribe,
    CommandSuccess,
    CommandUnsubscribe,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
)

__all__ = ["ANSWERS", "PendingRequests", "RequestRate"]

ANSWERS: Final[Mapping[type[Command], type[Command]]] = {
    CommandLookupTopic: CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata: CommandPartitionedTopicMetadataResponse,
    CommandGetTopicsOfNamespace: CommandGetTopicsOfNamespaceResponse,
    CommandWatchTopicList: CommandWatchTopicListSuccess,
    CommandWatchTopicListClose: CommandSuccess,
    CommandProducer: CommandProducerSuccess,
    CommandCloseProducer: CommandSuccess,
    CommandSubscribe: CommandSuccess,
    CommandCloseConsumer: CommandSuccess,
    CommandUnsubscribe: CommandSuccess,
    CommandSeek: CommandSuccess,
    CommandGetLastMessageId: CommandGetLastMessageIdResponse,
    CommandAck: CommandAckResponse,
}
"""The answer to each request, unless it is an error."""

_TOO_MANY: Final = 14
"""TooManyRequests."""


class _Waiting:
    __slots__ = ("about", "future", "name", "sent_at", "timer")

    def __init__(
        self, about: str, future: asyncio.Future[Command], timer: asyncio.TimerHandle | None
    ) -> None:
        self.about = about
        self.future = future
        self.timer = timer
        self.name = ""
        self.sent_at = 0.0  # loop time, with hooks only, as the name

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PendingRequests:
    """Requests by their ids, which are counted over all connections of a client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ids: count[int]) -> None:
        self._loop = loop
        self._ids = ids
        self._waiting: dict[int, _Waiting] = {}
        self.late = 0
        """Number of answers that came after their time limit."""

    def __repr__(self) -> str:
        return f"<PendingRequests {len(self._waiting)} waiting, {self.late} late>"

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, about: str, timeout: float | None) -> tuple[int, asyncio.Future[Command]]:
        """Return the id of a new request, and the future of its answer.

        The future raises PulsarServerError, RequestTimedOut after `timeout` seconds, or the error of `fail_all`.
        """
        number = next(self._ids)
        future: asyncio.Future[Command] = self._loop.create_future()
        timer = None if timeout is None else self._loop.call_later(timeout, self._expire, number, timeout)
        self._waiting[number] = _Waiting(about, future, timer)
        future.add_done_callback(lambda done: self._forget(number, done))
        return number, future

    def note_sent(self, number: int, name: str, now: float) -> None:
        """Keep the name and the time of a request that was written, for hooks."""
        if (waiting := self._waiting.get(number)) is not None:
            waiting.name, waiting.sent_at = name, now

    def sent(self, number: int) -> tuple[str, float] | None:
        """Return what `note_sent` has kept of a request that waits; None for others."""
        waiting = self._waiting.get(number)
        return None if waiting is None or not waiting.name else (waiting.name, waiting.sent_at)

    def _forget(self, number: int, done: asyncio.Future[Command]) -> None:
        """A caller was cancelled: its answer will be late."""
        if done.cancelled() and (waiting := self._waiting.pop(number, None)) is not None:
            waiting.end()

    def _expire(self, number: int, timeout: float) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_exception(RequestTimedOut(f"{waiting.about}: no answer within {timeout:g} s"))

    def answered(self, number: int, answer: Command) -> None:
        """An answer has arrived; one that is late is counted."""
        waiting = self._waiting.get(number)
        if waiting is None:
            self.late += 1
            return
        if isinstance(answer, CommandProducerSuccess) and not answer.producer_ready:
            waiting.end()  # the producer waits for its turn, without a limit: a second answer follows
            return
        del self._waiting[number]
        waiting.end()
        if waiting.future.done():
            return
        code = answer.error if isinstance(answer, CommandError) else getattr(answer, "error", None)
        if code is None:
            waiting.future.set_result(answer)
        else:
            text: str | None = getattr(answer, "message", None)
            waiting.future.set_exception(PulsarServerError(code, waiting.about, text))

    def fail_all(self, error: Exception) -> None:
        """The connection has ended."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.end()
            if not each.future.done():
                each.future.set_exception(error)
                each.future.exception()  # the caller may be gone


class RequestRate:
    """Counts refusals and requests without an answer: `limit` within a minute close a connection.

    The next one may reach another broker. As Java's `ClientCnx.incrementRejectsAndMaybeClose`, with its defaults.
    """

    WINDOW: Final = 60.0

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._since = float("-inf")

    def __repr__(self) -> str:
        return f"<RequestRate {self._count} refused>"

    def is_exceeded(self, error: PulsarServerError | RequestTimedOut, now: float) -> bool:
        """Count an error, if it is TooManyRequests or a timeout, and return whether there were too many."""
        if isinstance(error, PulsarServerError) and error.code != _TOO_MANY:
            return False
        if now - self._since > self.WINDOW:
            self._since, self._count = now, 0
        self._count += 1
        return self._count >= self._limit
