"""The interceptors of a consumer: called for each record once, when it is delivered to the reader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from asyncgroup.interceptor import CONSUMER_METHODS, ConsumeInterceptor, check_interceptors, listeners
from asyncgroup.model import Record

__all__ = ["Interceptors"]

_log = logging.getLogger("asyncgroup.consumer")


class Interceptors:
    """A chain of interceptors: each gets the record returned by the previous one.

    If one raises, or does not return a record of the same topic, partition and offset, the next one gets its input. This
    is logged once per interceptor and kind of failure. Unlike in sarama (`consumer.go`, `interceptors`), no interceptor
    sees a record twice when its partition stalls.
    """

    def __init__(self, chain: Iterable[ConsumeInterceptor]) -> None:
        """Raises ConfigError unless all are interceptors."""
        given = check_interceptors(chain, CONSUMER_METHODS)
        self._chain = [on_consume for _, on_consume in listeners(given, "on_consume", CONSUMER_METHODS)]
        self._logged: set[tuple[int, object]] = set()  # (number of the interceptor, kind of failure)

    @classmethod
    def of(cls, chain: Iterable[ConsumeInterceptor] | Interceptors) -> Interceptors | None:
        """Return the chain, or None if it is empty, so that readers without interceptors make no call."""
        interceptors = chain if isinstance(chain, Interceptors) else cls(chain)
        return interceptors if interceptors._chain else None

    def __call__(self, record: Record) -> Record:
        """Return the record to deliver in place of `record`."""
        for number, interceptor in enumerate(self._chain):
            try:
                returned = interceptor(record)
            # also CancelledError, as of the result of a cancelled future: it would look like the reader's cancellation
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  one interceptor must not stop the chain
                self._log_once(number, type(error), "raised", record, error)
                continue
            if returned is None or returned is record:
                continue
            if _is_same_place(returned, record):
                record = returned
            else:
                what = f"returned {returned!r}, which has another topic, partition or offset,"
                self._log_once(number, "place", what, record)
        return record

    def _log_once(
        self, number: int, kind: object, what: str, record: Record, error: BaseException | None = None
    ) -> None:
        if (number, kind) not in self._logged:
            self._logged.add((number, kind))
            text = "interceptor %r %s on %r; its result is ignored; logged once"
            _log.error(text, self._chain[number], what, record, exc_info=error)


def _is_same_place(returned: object, record: Record) -> bool:
    """Return whether an interceptor returned a record of the same topic, partition and offset.

    A mark of any other record would commit records that the reader has not seen.
    """
    return isinstance(returned, Record) and (returned.topic, returned.partition, returned.offset) == (
        record.topic,
        record.partition,
        record.offset,
    )
