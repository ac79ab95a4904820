"""What was asked and answered, in the order in which requests arrived."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.folding import folded
from asyncgroup.broker.named import TopicName, error_named, errors_in, groups_of, topics_of
from asyncgroup.broker.retained_bytes import retained_bytes
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.escaping import printable
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message
from asyncgroup.wire.protocol import API_BY_NAME

__all__ = ["DEFAULT_HISTORY_BYTES", "DEFAULT_HISTORY_LIMIT", "Exchange", "History"]

TOPICS_SHOWN: Final = 3
"""Topics that a line names."""

DEFAULT_HISTORY_LIMIT: Final = 10_000
DEFAULT_HISTORY_BYTES: Final = 64 * 1024 * 1024


class Exchange:
    """One request and, once there is one, its response.

    `time` is the loop's time of arrival in seconds, `answered_at` that of the answer (None: not answered yet,
    or never, as for acks=0 and for requests that a fault or a dying node swallowed). `api` is Kafka's name,
    e.g. `Fetch`. The messages' record payloads are dropped (None) unless the history keeps them;
    `request_bytes` and `response_bytes` are the sizes of the frames.
    """

    __slots__ = (
        *("answered_at", "api", "client_id", "held", "node_id", "request", "request_bytes", "response"),
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
        self.held: int | None = None
        """Estimated bytes of memory, while a history keeps the exchange."""

    def __repr__(self) -> str:
        state = "no answer" if self.answered_at is None else f"answered at {self.answered_at:.3f}"
        return (
            f"<Exchange {self.time:.3f} node {self.node_id} {self.api} v{self.version} "
            f"from {self.client_id!r}, {state}>"
        )

    @property
    def errors(self) -> list[ErrorCode]:
        """Every error in the response; empty without one."""
        return errors_in(self.response)

    @property
    def duration(self) -> float | None:
        """Seconds from the arrival to the answer, None without one."""
        return None if self.answered_at is None else self.answered_at - self.time

    def line(self, topics: Iterable[str] = ()) -> str:
        """The exchange for human eyes: when, where, what, who, with which groups and topics, and what came of it."""
        after = "" if self.duration is None else f" after {self.duration:.3f} s"
        return f"{self.time:10.3f}  {self.summary(topics)}{after}"

    def summary(self, topics: Iterable[str] = ()) -> str:
        """The line without its times."""
        names = sorted(topics)
        shown = [*groups_of(self.request), *names[:TOPICS_SHOWN]]
        if len(names) > TOPICS_SHOWN:
            shown.append(f"{len(names) - TOPICS_SHOWN} more topics")
        what = f"{self.api} v{self.version}" + (f" of {printable(', '.join(shown))}" if shown else "")
        if self.duration is None:
            end = "no answer"
        else:
            end = ", ".join(dict.fromkeys(code.name for code in self.errors)) or "ok"
        return f"node {self.node_id}  {printable(self.client_id or '-')}  {what}: {end}"


class History:
    """The last exchanges, oldest first: at most `limit`, and as many as take `max_bytes` of memory (an estimate). 0 keeps
    none. `dropped` counts those that had to go for newer ones since the start or the last `clear`, `bytes` is what the
    others take.

    `payloads`: keep the records of Produce requests and Fetch responses, which is memory that grows with the
    traffic. `topic_name` tells the name of a topic by its id.
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
        """Forget what was recorded so far, and how much was dropped."""
        while self._exchanges:
            self._drop_oldest()
        self.dropped = 0

    # -- looking -----------------------------------------------------------------------------------------------

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
        """The exchanges of these APIs (all if none is named) that fit everything named.

        `group` and `topic`: named by the request or the response, wherever it stands (a Fetch within a session
        names only what changed). `error`: a code or its name, told anywhere in the response. `answered`: with an
        answer, or without. `since`: arrived then (loop's time) or later. UsageError for an API that does not exist.
        """
        if unknown := [api for api in apis if api not in API_BY_NAME]:
            raise UsageError(f"no API is called {unknown[0]!r}; these are: {', '.join(sorted(API_BY_NAME))}")
        code = None if error is None else error_named(error, "error")
        return [
            exchange
            for exchange in self._exchanges
            if (not apis or exchange.api in apis)
            and (node is None or exchange.node_id == node)
            and (client_id is None or exchange.client_id == client_id)
            and (since is None or exchange.time >= since)
            and (answered is None or (exchange.answered_at is not None) == answered)
            and (group is None or group in groups_of(exchange.request))
            and (topic is None or topic in self._topics(exchange))
            and (code is None or code in exchange.errors)
        ]

    def _topics(self, exchange: Exchange) -> set[str]:
        named = topics_of(exchange.request, self._topic_name)
        return named | topics_of(exchange.response, self._topic_name)

    async def wait_for(self, *apis: str, count: int = 1, **named: Any) -> list[Exchange]:
        """Wait until `count` exchanges fit, and return all that do; arguments as for `of`. `asyncio.timeout` sets an end."""
        while len(found := self.of(*apis, **named)) < count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((lambda: len(self.of(*apis, **named)) >= count, future))
            await future
        return found

    def story(self, last: int | None = None, *, fold: bool = False) -> str:
        """Return the exchanges, or the `last` ones, as text, one per line. All of them come after a line that says how
        many were dropped. `fold` shows lines that differ only in their times once, and `last` counts folded lines.
        """
        exchanges = list(self._exchanges)
        shown = exchanges if fold else exchanges[-last if last else 0 :]
        topics = [self._topics(exchange) for exchange in shown]
        lines = [exchange.line(names) for exchange, names in zip(shown, topics, strict=True)]
        if fold:
            keys = [exchange.summary(names) for exchange, names in zip(shown, topics, strict=True)]
            lines = folded(lines, keys, [f"{exchange.time:.3f}" for exchange in shown])
            lines = lines[-last if last else 0 :]
        if self.dropped and len(shown) == len(exchanges):
            bounds = f"history_limit={self._limit}, history_bytes={self._max_bytes}"
            lines.insert(0, f"({self.dropped} earlier exchanges were dropped: {bounds})")
        return "\n".join(lines)

    # -- what the broker says ------------------------------------------------------------------------------------

    def open(self, context: RequestContext, request: Any, size: int) -> Exchange:
        """Record a request that arrived."""
        exchange = Exchange(context, request, size)
        exchange.held = 0
        self._exchanges.append(exchange)
        self._keep(exchange, request, size)
        if self._waiters:
            self._wake()
        return exchange

    def close(self, exchange: Exchange, response: Any, size: int, now: float) -> None:
        """Record the answer, after it was encoded."""
        exchange.response, exchange.response_bytes, exchange.answered_at = response, size, now
        self._keep(exchange, response, size)
        if self._waiters:
            self._wake()

    def _keep(self, exchange: Exchange, message: Message, frame_bytes: int) -> None:
        """Count what `exchange` takes more by `message`, and drop the oldest exchanges beyond the limits."""
        if exchange.held is None:  # dropped or cleared before its answer
            return
        added = retained_bytes(message, frame_bytes, payloads=self.payloads)
        exchange.held += added
        self.bytes += added
        while self.bytes > self._max_bytes or len(self._exchanges) > self._limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._exchanges.popleft()
        self.bytes -= oldest.held or 0
        oldest.held = None
        self.dropped += 1

    def _wake(self) -> None:
        for waiter in list(self._waiters):
            fulfilled, future = waiter
            if future.done() or fulfilled():
                self._waiters.remove(waiter)
                if not future.done():
                    future.set_result(None)

    def drop_payloads(self, exchange: Exchange) -> None:
        """Let go of the records: they are views that would keep whole frames and segments alive."""
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
