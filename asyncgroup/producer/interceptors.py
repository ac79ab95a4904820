"""The interceptors of a producer: called for each record when it is written, and when it is acknowledged or has failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from asyncgroup.hooks import with_default_hooks
from asyncgroup.interceptor import (
    PRODUCER_METHODS,
    ProduceInterceptor,
    ProducerRecord,
    check_interceptors,
    listeners,
)
from asyncgroup.model import RecordMetadata

__all__ = ["ProducerInterceptors"]

_log = logging.getLogger("asyncgroup.producer")


class ProducerInterceptors:
    """A chain of interceptors, called in this order. An exception or a wrong result of one is logged once and ignored."""

    def __init__(self, chain: Iterable[ProduceInterceptor]) -> None:
        """Raises ConfigError unless all are interceptors."""
        given = check_interceptors(chain, PRODUCER_METHODS)
        self._chain = tuple(
            each
            for each in with_default_hooks(given)
            if each in given or any(hasattr(each, method) for method in PRODUCER_METHODS)
        )
        self._on_send = listeners(self._chain, "on_send", PRODUCER_METHODS)
        self._on_acknowledgement = listeners(self._chain, "on_acknowledgement", PRODUCER_METHODS)
        self._logged: set[tuple[int, str, type]] = (
            set()
        )  # (number of the interceptor, method, type of the failure)

    def __bool__(self) -> bool:
        return bool(self._on_send or self._on_acknowledgement)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to write in place of `record`."""
        for number, on_send in self._on_send:
            returned = self._call(number, "on_send", record, on_send, record)
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
        for number, on_end in self._on_acknowledgement:
            self._call(number, "on_acknowledgement", record, on_end, record, metadata, error)

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
