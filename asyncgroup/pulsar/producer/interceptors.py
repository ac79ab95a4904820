"""Interceptors of a Pulsar producer: called for each message when it is sent, and when it is stored or has failed, as its hooks.

Their methods are those of `asyncgroup.interceptor.Interceptor`, with a PulsarProducerRecord and a MessageId.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias

from asyncgroup.errors import ClosedError
from asyncgroup.escaping import escaping_logger
from asyncgroup.hooks import Hooks, with_default_hooks
from asyncgroup.interceptor import PRODUCER_METHODS, check_interceptors, listeners
from asyncgroup.lifecycle import describe_error
from asyncgroup.pulsar.send_receiver import SendReceiver
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["PulsarInterceptor", "PulsarInterceptors", "PulsarProducerRecord", "SendPromise"]

_log = escaping_logger("asyncgroup.pulsar")


class PulsarProducerRecord(NamedTuple):
    """A message to be sent: the topic, and the arguments of `send`."""

    topic: str
    value: bytes | None
    key: bytes | str | None = None
    properties: Mapping[str, str] | None = None
    ordering_key: bytes | str | None = None
    event_time: datetime | int | None = None
    deliver_at: datetime | int | None = None
    deliver_after: float | None = None
    sequence_id: int | None = None


class _OnSend(Protocol):
    def on_send(self, record: PulsarProducerRecord, /) -> PulsarProducerRecord | None: ...


class _OnAcknowledgement(Protocol):
    def on_acknowledgement(
        self, record: PulsarProducerRecord, message_id: MessageId | None, error: Exception | None, /
    ) -> None: ...


PulsarInterceptor: TypeAlias = (
    _OnSend | _OnAcknowledgement | Callable[[PulsarProducerRecord], PulsarProducerRecord | None]
)
"""An object with `on_send`, `on_acknowledgement` or both, or a function: `on_send`."""


class PulsarInterceptors:
    """A chain of interceptors, called in this order. An exception or a wrong result of one is logged once and ignored."""

    def __init__(self, chain: Iterable[PulsarInterceptor]) -> None:
        """Raises ConfigError unless all are interceptors."""
        given = check_interceptors(chain, PRODUCER_METHODS)
        self._chain = tuple(
            each
            for each in with_default_hooks(given)
            if each in given or any(hasattr(each, method) for method in PRODUCER_METHODS)
        )
        self._on_send = listeners(self._chain, "on_send", PRODUCER_METHODS)
        self._on_acknowledgement = listeners(self._chain, "on_acknowledgement", PRODUCER_METHODS)
        self._logged: set[tuple[int, str, type]] = set()  # (number, method, type of the failure)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_send(self, record: PulsarProducerRecord) -> PulsarProducerRecord:
        """Return the record to send in place of `record`; its topic stays."""
        for number, on_send in self._on_send:
            returned = self._call(number, "on_send", record, on_send, record)
            if isinstance(returned, PulsarProducerRecord) and returned.topic == record.topic:
                record = returned
            elif returned is not None:
                text = f"on_send returned {returned!r}, which is not a PulsarProducerRecord of this topic"
                self._log_once(number, "on_send", record, TypeError(text))
        return record

    def on_acknowledgement(
        self, record: PulsarProducerRecord, message_id: MessageId | None, error: Exception | None
    ) -> None:
        """Report the end of a message."""
        for number, on_end in self._on_acknowledgement:
            self._call(number, "on_acknowledgement", record, on_end, record, message_id, error)

    def _call(
        self,
        number: int,
        what: str,
        record: PulsarProducerRecord,
        method: Callable[..., Any],
        *arguments: object,
    ) -> Any:
        try:
            return method(*arguments)
        # also CancelledError, as of the result of a cancelled future: it would end the connection's reader
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  one interceptor must not break the send
            self._log_once(number, what, record, error)

    def _log_once(self, number: int, what: str, record: PulsarProducerRecord, error: BaseException) -> None:
        kind = (number, what, type(error))
        if kind not in self._logged:
            self._logged.add(kind)
            text = "%s of interceptor %r failed for a message to %r; its result is ignored; logged once"
            _log.error(text, what, self._chain[number], record.topic, exc_info=error)


@dataclass(slots=True, eq=False)
class SendPromise:
    """Receives the result of a message for interceptors and hooks, and for the caller if one waits."""

    record: PulsarProducerRecord
    interceptors: PulsarInterceptors
    caller: SendReceiver | None
    on_silent: Callable[[Exception], None]
    """Is called with the error if no caller waits."""
    hooks: Hooks | None = None
    """Those of the client; None unless they listen to each message."""
    is_done: bool = False
    is_started: bool = False
    """Whether the hooks had its start, and not yet its end."""

    def done(self) -> bool:
        """Return whether the message has ended; a caller that is cancelled does not end it."""
        return self.is_done

    def report_start(self) -> None:
        """There is room for the message."""
        if self.hooks is not None:
            self.is_started = True
            self.hooks.emit("on_send_start", self.record)

    def set_result(self, message_id: MessageId, /) -> None:
        """The message is stored."""
        self._end(message_id, None)
        if self.caller is not None and not self.caller.done():
            self.caller.set_result(message_id)

    def set_exception(self, error: Exception, /) -> None:
        """The message has failed."""
        self._end(None, error)
        if self.caller is None:
            self.on_silent(error)
        elif not self.caller.done():
            self.caller.set_exception(error)

    def refuse(self, error: BaseException) -> None:
        """The message was not accepted; the caller gets the error from its call."""
        if not isinstance(error, Exception):
            error = ClosedError(f"the message was withdrawn: {describe_error(error)}")
        self._end(None, error)

    def _end(self, message_id: MessageId | None, error: Exception | None) -> None:
        self.is_done = True
        self.interceptors.on_acknowledgement(self.record, message_id, error)
        if self.is_started and self.hooks is not None:
            self.is_started = False
            self.hooks.emit("on_send_end", self.record, message_id, error)
