"""PendingRequests: the requests of a connection that wait for their answers, each with its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from math import inf
from typing import Final

from asyncgroup.errors import RequestTimedOut
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandAck,
    CommandAckResponse,
    CommandAddPartitionToTxn,
    CommandAddPartitionToTxnResponse,
    CommandAddSubscriptionToTxn,
    CommandAddSubscriptionToTxnResponse,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandEndTxn,
    CommandEndTxnOnPartition,
    CommandEndTxnOnPartitionResponse,
    CommandEndTxnOnSubscription,
    CommandEndTxnOnSubscriptionResponse,
    CommandEndTxnResponse,
    CommandError,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandNewTxn,
    CommandNewTxnResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandProducer,
    CommandProducerSuccess,
    CommandSeek,
    CommandSubscribe,
    CommandSuccess,
    CommandTcClientConnectRequest,
    CommandTcClientConnectResponse,
    CommandUnsubscribe,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
)

__all__ = ["ANSWERS", "Answered", "PendingRequests", "RequestRate"]

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
    CommandTcClientConnectRequest: CommandTcClientConnectResponse,
    CommandNewTxn: CommandNewTxnResponse,
    CommandAddPartitionToTxn: CommandAddPartitionToTxnResponse,
    CommandAddSubscriptionToTxn: CommandAddSubscriptionToTxnResponse,
    CommandEndTxn: CommandEndTxnResponse,
    CommandEndTxnOnPartition: CommandEndTxnOnPartitionResponse,
    CommandEndTxnOnSubscription: CommandEndTxnOnSubscriptionResponse,
}
"""The answer to each request, unless it is an error."""

_TOO_MANY: Final = 14
"""TooManyRequests."""


Answered = Callable[[Command | None, Exception | None], object]
"""Called once with the answer of a request, or with what it has failed with."""


class _Waiting:
    __slots__ = ("about", "deadline", "done", "has_turns", "name", "sent_at", "timeout")

    def __init__(self, about: str, timeout: float | None, deadline: float, done: Answered) -> None:
        self.about = about
        self.timeout = timeout
        self.deadline = deadline  # infinity without a limit
        self.done = done
        self.name = ""
        self.sent_at = 0.0  # loop time, with hooks only, as the name
        self.has_turns = False


class PendingRequests:
    """Requests by their ids, which are counted over all connections of a client.

    The time limits of all share a timer: a consumer of a thousand partitions acknowledges ten thousand times a second.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ids: count[int]) -> None:
        self._loop = loop
        self._ids = ids
        self._waiting: dict[int, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None  # at or before the earliest deadline
        self.late = 0
        """Number of answers that came after their time limit."""

    def __repr__(self) -> str:
        return f"<PendingRequests {len(self._waiting)} waiting, {self.late} late>"

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, about: str, timeout: float | None, done: Answered) -> int:
        """Return the id of a new request. `done` gets its answer, or an error.

        The errors: PulsarServerError, RequestTimedOut after `timeout` seconds, or that of `fail_all`.
        """
        number = next(self._ids)
        deadline = inf if timeout is None else self._loop.time() + timeout
        self._waiting[number] = _Waiting(about, timeout, deadline, done)
        if self._timer is None or deadline < self._timer.when():
            self._arm(deadline)
        return number

    def future(
        self, about: str, timeout: float | None, on_answer: Callable[[], object] | None = None
    ) -> tuple[int, asyncio.Future[Command]]:
        """Return the id of a new request, and the future of its answer; `on_answer` is called before what has arrived after the answer."""
        future: asyncio.Future[Command] = self._loop.create_future()
        done = partial(_settle, future)
        number = self.begin(about, timeout, done if on_answer is None else partial(_call, on_answer, done))
        future.add_done_callback(partial(self._forget, number))
        return number, future

    def allow_turns(self, number: int) -> None:
        """A request is PRODUCER: before its answer the broker may say that it waits for its turn."""
        self._waiting[number].has_turns = True

    def note_sent(self, number: int, name: str, now: float) -> None:
        """Keep the name and the time of a request that was written, for hooks."""
        if (waiting := self._waiting.get(number)) is not None:
            waiting.name, waiting.sent_at = name, now

    def sent(self, number: int) -> tuple[str, float] | None:
        """Return what `note_sent` has kept of a request that waits; None for others."""
        waiting = self._waiting.get(number)
        return None if waiting is None or not waiting.name else (waiting.name, waiting.sent_at)

    def _forget(self, number: int, future: asyncio.Future[Command]) -> None:
        """A caller was cancelled: its answer will be late."""
        if future.cancelled():
            self.give_up(number)

    def give_up(self, number: int) -> None:
        """Nothing waits for an answer any more, if there was one to come: it will be late."""
        self._waiting.pop(number, None)
        self._disarm_if_idle()

    # --- time limits ------------------------------------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if deadline == inf else self._loop.call_at(deadline, self._expire)

    def _disarm_if_idle(self) -> None:
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """End what is over its limit. Most times that is nothing: the request that the timer was set for was answered."""
        self._timer = None
        now = self._loop.time()
        over = [number for number, waiting in self._waiting.items() if waiting.deadline <= now]
        for number in over:
            if (
                waiting := self._waiting.pop(number, None)
            ) is not None:  # an earlier one's end may be the end of others
                waiting.done(
                    None, RequestTimedOut(f"{waiting.about}: no answer within {waiting.timeout:g} s")
                )
        # a request that began in these calls may have armed it
        if self._timer is None:
            self._arm(min((waiting.deadline for waiting in self._waiting.values()), default=inf))

    # --- answers ----------------------------------------------------------------------------------------------------------

    def answered(self, number: int, answer: Command) -> None:
        """An answer has arrived; one that is late is counted."""
        waiting = self._waiting.get(number)
        if waiting is None:
            self.late += 1
            return
        if waiting.has_turns and isinstance(answer, CommandProducerSuccess) and not answer.producer_ready:
            waiting.deadline = (
                inf  # the producer waits for its turn, without a limit: a second answer follows
            )
            return
        del self._waiting[number]
        self._disarm_if_idle()
        code = answer.error if isinstance(answer, CommandError) else getattr(answer, "error", None)
        if code is None:
            waiting.done(answer, None)
        else:
            text: str | None = getattr(answer, "message", None)
            waiting.done(None, PulsarServerError(code, waiting.about, text))

    def fail_all(self, error: Exception) -> None:
        """The connection has ended."""
        waiting, self._waiting = self._waiting, {}
        self._disarm_if_idle()
        for each in waiting.values():
            each.done(None, error)


def _settle(future: asyncio.Future[Command], answer: Command | None, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
        future.exception()  # the caller may be gone
    elif answer is not None:
        future.set_result(answer)


def _call(
    on_answer: Callable[[], object], done: Answered, answer: Command | None, error: Exception | None
) -> None:
    if error is None:
        on_answer()
    done(answer, error)


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
