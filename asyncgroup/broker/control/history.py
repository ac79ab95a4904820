"""History of requests and responses, in the order in which the requests arrived."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from asyncgroup.broker.control.folding import fold_repeats
from asyncgroup.broker.control.message_fields import (
    TopicName,
    errors_in,
    group_ids_in,
    parse_error_code,
    topic_names_in,
)
from asyncgroup.broker.control.retained_bytes import retained_bytes
from asyncgroup.broker.net.context import RequestContext
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.escaping import printable
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message
from asyncgroup.wire.protocol import API_BY_NAME

__all__ = ["DEFAULT_HISTORY_BYTES", "DEFAULT_HISTORY_LIMIT", "Exchange", "History"]

TOPICS_SHOWN: Final = 3
"""Number of topics named in a line."""

DEFAULT_HISTORY_LIMIT: Final = 10_000
DEFAULT_HISTORY_BYTES: Final = 64 * 1024 * 1024


class Exchange:
    """One request and, once it is sent, its response.

    `time` is the loop time of arrival in seconds, `answered_at` that of the response (None: no response yet, or
    never, as for acks=0 or if a fault or a stopped node dropped it). `api` is Kafka's name, e.g. `Fetch`. The
    messages' records are dropped (None) unless the history keeps them; `request_bytes` and `response_bytes` are the
    sizes of the frames.
    """

    __slots__ = (
        *(
            "answered_at",
            "api",
            "client_id",
            "memory_bytes",
            "node_id",
            "request",
            "request_bytes",
            "response",
        ),
        *("response_bytes", "time", "version"),
    )

    def __init__(self, context: RequestContext, request: Any, size: int) -> None:
        self.time: float = context.time
        self.node_id: int = context.node_id
        self.client_id: str = context.client_id
        self.api: str = context.api
        self.version: int = context.api_version
        self.request = request
        self.response: Any = None
        self.answered_at: float | None = None
        self.request_bytes = size
        self.response_bytes = 0
        self.memory_bytes: int | None = None
        """Estimated memory in bytes; None unless a history keeps the exchange."""

    def __repr__(self) -> str:
        state = "no answer" if self.answered_at is None else f"answered at {self.answered_at:.3f}"
        return (
            f"<Exchange {self.time:.3f} node {self.node_id} {self.api} v{self.version} "
            f"from {self.client_id!r}, {state}>"
        )

    @property
    def errors(self) -> list[ErrorCode]:
        """All errors in the response; empty without a response."""
        return errors_in(self.response)

    @property
    def duration(self) -> float | None:
        """Seconds from arrival to response, None without a response."""
        return None if self.answered_at is None else self.answered_at - self.time

    def line(self, topics: Iterable[str] = ()) -> str:
        """Return the exchange as a line of text: time, node, client, API, groups and topics, result, duration."""
        after = "" if self.duration is None else f" after {self.duration:.3f} s"
        return f"{self.time:10.3f}  {self.summary(topics)}{after}"

    def summary(self, topics: Iterable[str] = ()) -> str:
        """Return the line without its times."""
        names = sorted(topics)
        shown = [*group_ids_in(self.request), *names[:TOPICS_SHOWN]]
        if len(names) > TOPICS_SHOWN:
            shown.append(f"{len(names) - TOPICS_SHOWN} more topics")
        what = f"{self.api} v{self.version}" + (f" of {printable(', '.join(shown))}" if shown else "")
        if self.duration is None:
            end = "no answer"
        else:
            end = ", ".join(dict.fromkeys(code.name for code in self.errors)) or "ok"
        return f"node {self.node_id}  {printable(self.client_id or '-')}  {what}: {end}"


class History:
    """The last exchanges, oldest first: at most `limit`, in at most `max_bytes` of memory (estimated); 0 keeps none.

    `dropped` counts the exchanges dropped at these limits since the start or the last `clear`; `bytes` is the memory of
    the others. `payloads`: also keep the records of Produce requests and Fetch responses, so that memory grows with the
    traffic. `topic_name` returns the name of a topic by its id.
    """

    def __init__(
        self,
        limit: int = DEFAULT_HISTORY_LIMIT,
        *,
        max_bytes: int = DEFAULT_HISTORY_BYTES,
        payloads: bool = False,
        topic_name: TopicName = lambda _: None,
    ) -> None:
        for key, value in (("history_limit", limit), ("history_bytes", max_bytes)):
            if not isinstance(value, int) or value < 0:
                raise ConfigError(key, value, "0 or more, a whole number")
        self._exchanges: deque[Exchange] = deque()
        self._limit = limit
        self._max_bytes = max_bytes
        self.bytes = 0
        self.dropped = 0
        self._topic_name = topic_name
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.payloads = payloads
        self.recording = limit > 0 and max_bytes > 0

    def __repr__(self) -> str:
        return (
            f"<History {len(self)} of at most {self._limit} exchanges, {self.bytes} of at most {self._max_bytes} bytes, "
            f"{self.dropped} dropped>"
        )

    def __len__(self) -> int:
        return len(self._exchanges)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(list(self._exchanges))

    def __getitem__(self, index: int) -> Exchange:
        return self._exchanges[index]

    def clear(self) -> None:
        """Remove all exchanges and reset `dropped`."""
        while self._exchanges:
            self._drop_oldest()
        self.dropped = 0

    # -- queries -----------------------------------------------------------------------------------------------

    def of(
        self,
        *apis: str,
        node: int | None = None,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        error: int | str | None = None,
        answered: bool | None = None,
        since: float | None = None,
    ) -> list[Exchange]:
        """Return the exchanges of these APIs (default: all) that match all arguments given.

        `group` and `topic`: named anywhere in the request or response (a Fetch within a session names only changed
        partitions). `error`: a code or its name, found anywhere in the response. `answered`: with a response, or
        without. `since`: arrived at this loop time or later. Raise UsageError for an unknown API.
        """
        if unknown := [api for api in apis if api not in API_BY_NAME]:
            raise UsageError(f"unknown API {unknown[0]!r}; the APIs are {', '.join(sorted(API_BY_NAME))}")
        code = None if error is None else parse_error_code(error, "error")
        return [
            exchange
            for exchange in self._exchanges
            if (not apis or exchange.api in apis)
            and (node is None or exchange.node_id == node)
            and (client_id is None or exchange.client_id == client_id)
            and (since is None or exchange.time >= since)
            and (answered is None or (exchange.answered_at is not None) == answered)
            and (group is None or group in group_ids_in(exchange.request))
            and (topic is None or topic in self._topics(exchange))
            and (code is None or code in exchange.errors)
        ]

    def _topics(self, exchange: Exchange) -> set[str]:
        named = topic_names_in(exchange.request, self._topic_name)
        return named | topic_names_in(exchange.response, self._topic_name)

    async def wait_for(self, *apis: str, count: int = 1, **named: Any) -> list[Exchange]:
        """Wait until `count` exchanges match, and return all that do; arguments as for `of`.

        There is no time limit; use `asyncio.timeout`.
        """
        while len(found := self.of(*apis, **named)) < count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((lambda: len(self.of(*apis, **named)) >= count, future))
            await future
        return found

    def story(self, last: int | None = None, *, fold: bool = False) -> str:
        """Return all exchanges, or the `last` ones, as text, one per line.

        `fold` shows repeated lines that differ only in their times once; `last` then counts folded lines. If all
        exchanges are shown, the first line says how many were dropped before them.
        """
        exchanges = list(self._exchanges)
        shown = exchanges if fold else exchanges[-last if last else 0 :]
        topics = [self._topics(exchange) for exchange in shown]
        lines = [exchange.line(names) for exchange, names in zip(shown, topics, strict=True)]
        if fold:
            keys = [exchange.summary(names) for exchange, names in zip(shown, topics, strict=True)]
            lines = fold_repeats(lines, keys, [f"{exchange.time:.3f}" for exchange in shown])
            lines = lines[-last if last else 0 :]
        if self.dropped and len(shown) == len(exchanges):
            bounds = f"history_limit={self._limit}, history_bytes={self._max_bytes}"
            lines.insert(0, f"({self.dropped} earlier exchanges were dropped: {bounds})")
        return "\n".join(lines)

    # -- called by the broker --------------------------------------------------------------------------------------

    def record_request(self, context: RequestContext, request: Any, size: int) -> Exchange:
        """Record an arrived request."""
        exchange = Exchange(context, request, size)
        exchange.memory_bytes = 0
        self._exchanges.append(exchange)
        self._account(exchange, request, size)
        if self._waiters:
            self._wake_waiters()
        return exchange

    def record_response(self, exchange: Exchange, response: Any, size: int, now: float) -> None:
        """Record the encoded response: `size` bytes, sent at `now` (loop time)."""
        exchange.response = response
        exchange.response_bytes = size
        exchange.answered_at = now
        self._account(exchange, response, size)
        if self._waiters:
            self._wake_waiters()

    def _account(self, exchange: Exchange, message: Message, frame_bytes: int) -> None:
        """Add the memory of `message` to the exchange's, and drop the oldest exchanges beyond the limits."""
        if exchange.memory_bytes is None:  # dropped or cleared before its response
            return
        added = retained_bytes(message, frame_bytes, payloads=self.payloads)
        exchange.memory_bytes += added
        self.bytes += added
        while self.bytes > self._max_bytes or len(self._exchanges) > self._limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._exchanges.popleft()
        self.bytes -= oldest.memory_bytes or 0
        oldest.memory_bytes = None
        self.dropped += 1

    def _wake_waiters(self) -> None:
        for waiter in list(self._waiters):
            fulfilled, future = waiter
            if future.done() or fulfilled():
                self._waiters.remove(waiter)
                if not future.done():
                    future.set_result(None)

    def drop_payloads(self, exchange: Exchange) -> None:
        """Drop the records, unless `payloads`: they are views that would keep whole frames and segments in memory."""
        if self.payloads:
            return
        if isinstance(exchange.request, m.ProduceRequest):
            for topic in exchange.request.topic_data:
                for produced in topic.partition_data:
                    produced.records = None
        if isinstance(exchange.response, m.FetchResponse):
            for fetched in exchange.response.responses:
                for partition in fetched.partitions:
                    partition.records = None
