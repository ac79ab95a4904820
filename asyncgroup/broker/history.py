"""What was asked and answered, in the order in which requests arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.wire import messages as m

__all__ = ["DEFAULT_HISTORY_LIMIT", "Exchange", "History"]

DEFAULT_HISTORY_LIMIT: Final = 10_000


@dataclass(slots=True)
class Exchange:
    """One request and, once there is one, its response.

    `time` is the loop's time of arrival in seconds, `answered_at` that of the answer (None: not answered yet,
    or never, as for acks=0 and for requests that a fault or a dying node swallowed). `api` is Kafka's name,
    e.g. `Fetch`. The messages' record payloads are dropped (None) unless the history keeps them;
    `request_bytes` and `response_bytes` are the sizes of the frames.
    """

    time: float
    node_id: int
    client_id: str
    api: str
    version: int
    request: Any
    response: Any = None
    answered_at: float | None = None
    request_bytes: int = 0
    response_bytes: int = 0

    def __repr__(self) -> str:
        state = "no answer" if self.answered_at is None else f"answered at {self.answered_at:.3f}"
        return (
            f"<Exchange {self.time:.3f} node {self.node_id} {self.api} v{self.version} "
            f"from {self.client_id!r}, {state}>"
        )


class History:
    """The last `limit` exchanges, oldest first. `limit` 0 keeps none.

    `payloads`: keep the records of Produce requests and Fetch responses, which is memory that grows with the
    traffic.
    """

    def __init__(self, limit: int = DEFAULT_HISTORY_LIMIT, *, payloads: bool = False) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=limit)
        self.payloads = payloads
        self.recording = limit > 0

    def __repr__(self) -> str:
        return f"<History {len(self)} of at most {self._exchanges.maxlen} exchanges>"

    def __len__(self) -> int:
        return len(self._exchanges)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(list(self._exchanges))

    def __getitem__(self, index: int) -> Exchange:
        return self._exchanges[index]

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self._exchanges.clear()

    def of(
        self, *apis: str, node: int | None = None, client_id: str | None = None, group: str | None = None
    ) -> list[Exchange]:
        """The exchanges of these APIs (all if none is named), of one node, one client, one group."""
        return [
            exchange
            for exchange in self._exchanges
            if (not apis or exchange.api in apis)
            and (node is None or exchange.node_id == node)
            and (client_id is None or exchange.client_id == client_id)
            and (group is None or getattr(exchange.request, "group_id", None) == group)
        ]

    def open(self, context: RequestContext, request: Any, size: int) -> Exchange:
        """Record a request that arrived."""
        exchange = Exchange(
            context.time,
            context.node_id,
            context.client_id,
            context.api,
            context.api_version,
            request,
            request_bytes=size,
        )
        self._exchanges.append(exchange)
        return exchange

    def close(self, exchange: Exchange, response: Any, size: int, now: float) -> None:
        """Record the answer, after it was encoded."""
        exchange.response, exchange.response_bytes, exchange.answered_at = response, size, now

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
