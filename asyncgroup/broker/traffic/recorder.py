"""TrafficRecorder: the last exchanges of a cluster, kept within limits. `TrafficHistory` is what users see of them.

A `RecordedExchange` is a request that has arrived and, once it is sent, its response.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from asyncgroup.errors import ConfigError

__all__ = [
    "DEFAULT_HISTORY_BYTES",
    "DEFAULT_HISTORY_LIMIT",
    "RecordedExchange",
    "RequestInfo",
    "TrafficRecorder",
]

DEFAULT_HISTORY_LIMIT: Final = 10_000
DEFAULT_HISTORY_BYTES: Final = 64 * 1024 * 1024


class RequestInfo(Protocol):
    """What is known of a request besides its message."""

    @property
    def time(self) -> float:
        """Arrival, loop time in seconds."""

    @property
    def node_id(self) -> int:
        """The node that it arrived at."""

    @property
    def client_id(self) -> str:
        """The name that the client gives itself."""

    @property
    def connection(self) -> int:
        """The number of the connection that it came on."""

    @property
    def api(self) -> str:
        """The name of its kind in the protocol's documentation."""

    @property
    def api_version(self) -> int:
        """The version of its message; 0 in a protocol without versions."""


class RecordedExchange:
    """One request and, once it is sent, its response.

    `time` is the loop time of arrival in seconds, `answered_at` that of the response (None: no response yet, or
    never). `request_bytes` and `response_bytes` are the sizes of the frames.
    """

    __slots__ = (
        *("answered_at", "api", "client_id", "node_id", "request"),
        *("request_bytes", "response", "response_bytes", "time", "version"),
    )

    def __init__(self, info: RequestInfo, request: Any, size: int) -> None:
        self.time: float = info.time
        self.node_id: int = info.node_id
        self.client_id: str = info.client_id
        self.api: str = info.api
        self.version: int = info.api_version
        self.request = request
        self.response: Any = None
        self.answered_at: float | None = None
        self.request_bytes = size
        self.response_bytes = 0

    def __repr__(self) -> str:
        state = "no answer" if self.answered_at is None else f"answered at {self.answered_at:.3f}"
        return (
            f"<{type(self).__name__} {self.time:.3f} node {self.node_id} {self.api} v{self.version} "
            f"from {self.client_id!r}, {state}>"
        )

    @property
    def duration(self) -> float | None:
        """Seconds from arrival to response, None without a response."""
        return None if self.answered_at is None else self.answered_at - self.time


ExchangeT = TypeVar("ExchangeT", bound=RecordedExchange)
"""The exchanges of a protocol."""


class TrafficRecorder(Generic[ExchangeT]):
    """Keeps the last exchanges, oldest first: at most `limit`, in at most `max_bytes` of memory (estimated); 0 keeps none.

    `new_exchange(info, request, size)` makes the exchange of a request.
    """

    def __init__(
        self, new_exchange: Callable[[Any, Any, int], ExchangeT], limit: int, max_bytes: int
    ) -> None:
        for key, value in (("history_limit", limit), ("history_bytes", max_bytes)):
            if not isinstance(value, int) or value < 0:
                raise ConfigError(key, value, "0 or more, a whole number")
        self.limit = limit
        self.max_bytes = max_bytes
        self.recording = limit > 0 and max_bytes > 0
        self.exchanges: deque[ExchangeT] = deque()
        self.bytes = 0
        """Estimated memory of all exchanges kept."""
        self.dropped = 0
        """Exchanges dropped at the limits since the start or the last `clear`."""
        self._new_exchange = new_exchange
        self._memory: dict[ExchangeT, int] = {}
        """Estimated memory in bytes of each exchange kept."""
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.exchanges)} kept, {self.dropped} dropped>"

    def record_request(self, info: RequestInfo, request: Any, size: int) -> ExchangeT:
        """Record an arrived request."""
        exchange = self._new_exchange(info, request, size)
        self._memory[exchange] = 0
        self.exchanges.append(exchange)
        self._account(exchange, request, size)
        if self._waiters:
            self._wake_waiters()
        return exchange

    def record_response(self, exchange: ExchangeT, response: Any, size: int, now: float) -> None:
        """Record the encoded response: `size` bytes, sent at `now` (loop time)."""
        exchange.response = response
        exchange.response_bytes = size
        exchange.answered_at = now
        self._account(exchange, response, size)
        if self._waiters:
            self._wake_waiters()

    def clear(self) -> None:
        """Remove all exchanges and reset `dropped`."""
        self.exchanges.clear()
        self._memory.clear()
        self.bytes = self.dropped = 0

    @abstractmethod
    def _retained_bytes(self, message: Any, frame_bytes: int) -> int:
        """Return the estimated memory of a decoded message in bytes; `frame_bytes` is its size on the wire."""

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

    def _account(self, exchange: ExchangeT, message: Any, frame_bytes: int) -> None:
        """Add the memory of `message` to the exchange's, and drop the oldest exchanges beyond the limits."""
        if exchange not in self._memory:  # dropped or cleared before its response
            return
        added = self._retained_bytes(message, frame_bytes)
        self._memory[exchange] += added
        self.bytes += added
        while self.bytes > self.max_bytes or len(self.exchanges) > self.limit:
            self.bytes -= self._memory.pop(self.exchanges.popleft())
            self.dropped += 1
