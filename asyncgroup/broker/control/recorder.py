"""The recorded requests and responses of a cluster, kept within limits. `History` is what users see of it."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from asyncgroup.broker.control.message_fields import errors_in, group_ids_in
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.escaping import printable
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message

__all__ = ["DEFAULT_HISTORY_BYTES", "DEFAULT_HISTORY_LIMIT", "Exchange", "ExchangeRecorder", "summary"]

TOPICS_SHOWN: Final = 3
"""Number of topics named in a line."""

DEFAULT_HISTORY_LIMIT: Final = 10_000
DEFAULT_HISTORY_BYTES: Final = 64 * 1024 * 1024

_SMALL_FRAME: Final = 512
_BYTES_OF_A_SMALL_FRAME: Final = 1024
_BYTES_PER_BYTE: Final = 16
"""Upper bound of the memory per byte of the frame; small messages are not measured, as that would take too long."""

_SMALL_NUMBER: Final = 1 << 8  # CPython shares the objects of smaller numbers


class Exchange:
    """One request and, once it is sent, its response.

    `time` is the loop time of arrival in seconds, `answered_at` that of the response (None: no response yet, or
    never, as for acks=0 or if a fault or a stopped node dropped it). `api` is Kafka's name, e.g. `Fetch`. The
    messages' records are dropped (None) unless the history keeps them; `request_bytes` and `response_bytes` are the
    sizes of the frames.
    """

    __slots__ = (
        *("answered_at", "api", "client_id", "node_id", "request"),
        *("request_bytes", "response", "response_bytes", "time", "version"),
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
        """Return the exchange as a line of text: time, node, client, API, groups and `topics`, result, duration."""
        after = "" if self.duration is None else f" after {self.duration:.3f} s"
        return f"{self.time:10.3f}  {summary(self, topics)}{after}"


def summary(exchange: Exchange, topics: Iterable[str]) -> str:
    """Return the line of an exchange without its times."""
    names = sorted(topics)
    shown = [*group_ids_in(exchange.request), *names[:TOPICS_SHOWN]]
    if len(names) > TOPICS_SHOWN:
        shown.append(f"{len(names) - TOPICS_SHOWN} more topics")
    what = f"{exchange.api} v{exchange.version}" + (f" of {printable(', '.join(shown))}" if shown else "")
    if exchange.duration is None:
        end = "no answer"
    else:
        end = ", ".join(dict.fromkeys(code.name for code in exchange.errors)) or "ok"
    return f"node {exchange.node_id}  {printable(exchange.client_id or '-')}  {what}: {end}"


class ExchangeRecorder:
    """Keeps the last exchanges, oldest first: at most `limit`, in at most `max_bytes` of memory (estimated); 0 keeps none.

    `payloads`: also keep the records of Produce requests and Fetch responses, so that memory grows with the traffic.
    """

    def __init__(
        self,
        limit: int = DEFAULT_HISTORY_LIMIT,
        *,
        max_bytes: int = DEFAULT_HISTORY_BYTES,
        payloads: bool = False,
    ) -> None:
        for key, value in (("history_limit", limit), ("history_bytes", max_bytes)):
            if not isinstance(value, int) or value < 0:
                raise ConfigError(key, value, "0 or more, a whole number")
        self.limit = limit
        self.max_bytes = max_bytes
        self.recording = limit > 0 and max_bytes > 0
        self.exchanges: deque[Exchange] = deque()
        self.bytes = 0
        """Estimated memory of all exchanges kept."""
        self.dropped = 0
        """Exchanges dropped at the limits since the start or the last `clear`."""
        self._payloads = payloads
        self._memory: dict[Exchange, int] = {}
        """Estimated memory in bytes of each exchange kept."""
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<ExchangeRecorder {len(self.exchanges)} kept, {self.dropped} dropped>"

    def record_request(self, context: RequestContext, request: Any, size: int) -> Exchange:
        """Record an arrived request."""
        exchange = Exchange(context, request, size)
        self._memory[exchange] = 0
        self.exchanges.append(exchange)
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

    def release_payloads(self, exchange: Exchange) -> None:
        """Drop the records, unless `payloads`: they are views that would keep whole frames and segments in memory."""
        if self._payloads:
            return
        if isinstance(exchange.request, m.ProduceRequest):
            for topic in exchange.request.topic_data:
                for produced in topic.partition_data:
                    produced.records = None
        if isinstance(exchange.response, m.FetchResponse):
            for fetched in exchange.response.responses:
                for partition in fetched.partitions:
                    partition.records = None

    def clear(self) -> None:
        """Remove all exchanges and reset `dropped`."""
        self.exchanges.clear()
        self._memory.clear()
        self.bytes = self.dropped = 0

    async def wait_until(self, fulfilled: Callable[[], bool]) -> None:
        """Wait for the next request or response after which `fulfilled()` is true."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((fulfilled, future))
        await future

    def _wake_waiters(self) -> None:
        for waiter in list(self._waiters):
            fulfilled, future = waiter
            if future.done() or fulfilled():
                self._waiters.remove(waiter)
                if not future.done():
                    future.set_result(None)

    def _account(self, exchange: Exchange, message: Message, frame_bytes: int) -> None:
        """Add the memory of `message` to the exchange's, and drop the oldest exchanges beyond the limits."""
        if exchange not in self._memory:  # dropped or cleared before its response
            return
        added = _retained_bytes(message, frame_bytes, payloads=self._payloads)
        self._memory[exchange] += added
        self.bytes += added
        while self.bytes > self.max_bytes or len(self.exchanges) > self.limit:
            self.bytes -= self._memory.pop(self.exchanges.popleft())
            self.dropped += 1


def _retained_bytes(message: Message, frame_bytes: int, *, payloads: bool) -> int:
    """Return the estimated memory of a decoded message in bytes, including records if `payloads`.

    `frame_bytes` is the message's size on the wire.
    """
    if frame_bytes <= _SMALL_FRAME:
        return _BYTES_OF_A_SMALL_FRAME + _BYTES_PER_BYTE * frame_bytes
    return _measured(message, payloads)


def _measured(value: object, payloads: bool) -> int:
    if isinstance(value, Message):
        names = [name for name in value.__slots__ if payloads or name != "records"]
        return sys.getsizeof(value) + sum([_measured(getattr(value, name), payloads) for name in names])
    if isinstance(value, list):
        return sys.getsizeof(value) + sum([_measured(one, payloads) for one in value])
    if isinstance(value, memoryview):
        return sys.getsizeof(value) + value.nbytes
    if value is None or (isinstance(value, int) and 0 <= value < _SMALL_NUMBER):
        return 0
    return sys.getsizeof(value)
