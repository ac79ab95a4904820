"""Interceptors of producers: called for each record when it is written, and when it is acknowledged or has failed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from asyncgroup.errors import ConfigError
from asyncgroup.model import Header, RecordMetadata

__all__ = ["ProducerInterceptor", "ProducerInterceptors", "ProducerRecord"]

_log = logging.getLogger("asyncgroup.producer")


class ProducerRecord(NamedTuple):
    """A record to be written: the arguments of `Producer.send`."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp: int | None = None


# ruff: noqa: ARG002  the methods to override do nothing
class ProducerInterceptor:
    """A base class for interceptors, given as `Producer(interceptors=[…])`; override one or both methods.

    They run on the event loop for each record, so they have to be fast. Their exceptions are logged once per exception type
    (`asyncgroup.producer`) and otherwise ignored. Modeled on Java's `ProducerInterceptor` (KIP-42).
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """Return the record to write, which may have another topic or partition; None means the record itself.

        Called before the arguments are checked. The next interceptor gets the returned record.
        """
        return None

    def on_acknowledgement(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: Exception | None
    ) -> None:
        """The record was acknowledged, with `metadata`, or was not accepted or failed, with `error`.

        Called once for each `on_send`, with the record of the last interceptor, before the caller of `send` continues.
        If the caller was cancelled before the record was accepted, `error` is a ClosedError.
        """
        return


class ProducerInterceptors:
    """A chain of interceptors, called in this order. An exception or a wrong result of one is logged once and ignored."""

    def __init__(self, chain: Iterable[ProducerInterceptor]) -> None:
        self._chain = _checked(chain)
        self._logged: set[tuple[int, str, type]] = (
            set()
        )  # (number of the interceptor, method, type of the failure)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to write in place of `record`."""
        for number, interceptor in enumerate(self._chain):
            returned = self._call(number, "on_send", record, interceptor.on_send, record)
            if isinstance(returned, ProducerRecord):
                record = returned
            elif returned is not None:
                error = TypeError(f"on_send returned {returned!r}, which is not a ProducerRecord")
                self._log_once(number, "on_send", record, error)
        return record

    def on_acknowledgement(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: Exception | None
    ) -> None:
        """Report the end of a record."""
        for number, interceptor in enumerate(self._chain):
            what = "on_acknowledgement"
            self._call(number, what, record, interceptor.on_acknowledgement, record, metadata, error)

    def _call(
        self, number: int, what: str, record: ProducerRecord, method: Callable[..., Any], *args: object
    ) -> Any:
        try:
            return method(*args)
        # also CancelledError, as of the result of a cancelled future: it would end the task that sends
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  one interceptor must not break the send
            self._log_once(number, what, record, error)

    def _log_once(self, number: int, what: str, record: ProducerRecord, error: BaseException) -> None:
        kind = (number, what, type(error))
        if kind not in self._logged:
            self._logged.add(kind)
            text = "%s of interceptor %r failed for a record of topic %r; its result is ignored; logged once"
            _log.error(text, what, self._chain[number], record.topic, exc_info=error)


def _checked(chain: Iterable[ProducerInterceptor]) -> tuple[ProducerInterceptor, ...]:
    """Return the interceptors; raise ConfigError unless they are several objects with both methods."""
    rule = "a list of objects with on_send and on_acknowledgement: interceptors=[interceptor]"
    if not isinstance(chain, Iterable):
        raise ConfigError("interceptors", chain, rule)
    given = tuple(chain)
    for interceptor in given:
        methods = [getattr(interceptor, name, None) for name in ("on_send", "on_acknowledgement")]
        if isinstance(interceptor, type) or not all(map(callable, methods)):
            raise ConfigError("interceptors", interceptor, rule)
        if any(map(inspect.iscoroutinefunction, methods)):
            raise ConfigError(
                "interceptors", interceptor, "objects with plain methods, not coroutine functions"
            )
    return given
