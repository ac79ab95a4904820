"""The recorded requests and responses of a Kafka cluster: their errors, their text, the memory of their messages."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from asyncgroup.broker.control.message_fields import errors_in, group_ids_in
from asyncgroup.broker.traffic.history import timed_line
from asyncgroup.broker.traffic.recorder import (
    DEFAULT_HISTORY_BYTES,
    DEFAULT_HISTORY_LIMIT,
    RecordedExchange,
    TrafficRecorder,
)
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import printable
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message

__all__ = ["Exchange", "ExchangeRecorder", "summary"]

TOPICS_SHOWN: Final = 3
"""Number of topics named in a line."""

_SMALL_FRAME: Final = 512
_BYTES_OF_A_SMALL_FRAME: Final = 1024
_BYTES_PER_BYTE: Final = 16
"""Upper bound of the memory per byte of the frame; small messages are not measured, as that would take too long."""

_SMALL_NUMBER: Final = 1 << 8  # CPython shares the objects of smaller numbers


class Exchange(RecordedExchange):
    """One request and, once it is sent, its response.

    `time` is the loop time of arrival in seconds, `answered_at` that of the response (None: no response yet, or
    never, as for acks=0 or if a fault or a stopped node dropped it). `api` is Kafka's name, e.g. `Fetch`. The
    messages' records are dropped (None) unless the history keeps them; `request_bytes` and `response_bytes` are the
    sizes of the frames.
    """

    __slots__ = ()

    @property
    def errors(self) -> list[ErrorCode]:
        """All errors in the response; empty without a response."""
        return errors_in(self.response)

    def line(self, topics: Iterable[str] = ()) -> str:
        """Return the exchange as a line of text: time, node, client, API, groups and `topics`, result, duration."""
        return timed_line(self, summary(self, topics))


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


class ExchangeRecorder(TrafficRecorder[Exchange]):
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
        super().__init__(Exchange, limit, max_bytes)
        self._payloads = payloads

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

    def _retained_bytes(self, message: Message, frame_bytes: int) -> int:
        """Return the estimated memory of a decoded message in bytes, including records if `payloads`."""
        if frame_bytes <= _SMALL_FRAME:
            return _BYTES_OF_A_SMALL_FRAME + _BYTES_PER_BYTE * frame_bytes
        return _measured(message, self._payloads)


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
