"""Interceptors: functions that see each record once, on its way to the reader."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from asyncgroup.model import Record

__all__ = ["Interceptor", "Interceptors"]

_log = logging.getLogger("asyncgroup.consumer")


class Interceptor(Protocol):
    """A function that sees each record once, when it is handed out; given as `interceptors=[…]`, called in that order.

    It may return another record in its place, of the same topic, partition and offset; None and the record itself leave
    it as it is. It runs on the event loop for each record, so it has to be quick. What it raises is logged once for each
    kind of exception (`asyncgroup.consumer`) and goes no further: the record is handed out.
    """

    def __call__(self, record: Record, /) -> Record | None:
        """Return the record to hand out, or None for this one."""
        ...


class Interceptors:
    """A chain of interceptors: each gets what the one before it has made of the record.

    One that raises, or gives what is no record of the same place, is passed over: the next one gets the record as it
    was. The log hears of it once for each interceptor and kind of failure, not for each record. Unlike sarama's
    (`consumer.go`, `interceptors`), none sees a record twice when its partition stalls.
    """

    def __init__(self, chain: Iterable[Interceptor]) -> None:
        self._chain = tuple(chain)
        self._told: set[tuple[int, object]] = set()

    @classmethod
    def of(cls, chain: Iterable[Interceptor] | Interceptors) -> Interceptors | None:
        """The chain, None for an empty one: a reader without interceptors asks nobody."""
        if isinstance(chain, Interceptors):
            return chain if chain._chain else None
        made = cls(chain)
        return made if made._chain else None

    def __call__(self, record: Record) -> Record:
        """What the reader gets for `record`."""
        for number, interceptor in enumerate(self._chain):
            try:
                given = interceptor(record)
            except Exception as error:  # noqa: BLE001  one interceptor must not stop the chain
                self._tell(number, type(error), "raised", record, error)
                continue
            if given is None or given is record:
                continue
            if _is_same_place(given, record):
                record = given
            else:
                self._tell(number, "place", f"gave {given!r}, which is not of that place,", record)
        return record

    def _tell(
        self, number: int, kind: object, what: str, record: Record, error: Exception | None = None
    ) -> None:
        if (number, kind) not in self._told:
            self._told.add((number, kind))
            text = "interceptor %r %s on %r; it is passed over, and told of once"
            _log.error(text, self._chain[number], what, record, exc_info=error)


def _is_same_place(given: object, record: Record) -> bool:
    """A record of another place would be marked there, over records that nobody has seen."""
    return isinstance(given, Record) and (given.topic, given.partition, given.offset) == (
        record.topic,
        record.partition,
        record.offset,
    )
