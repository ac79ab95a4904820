"""Interceptor: what clients call with each record that is delivered, written, or acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from asyncgroup.checks import is_async
from asyncgroup.errors import ConfigError
from asyncgroup.model import Header, Record, RecordMetadata

__all__ = [
    "CONSUMER_METHODS",
    "PRODUCER_METHODS",
    "ConsumeInterceptor",
    "Interceptor",
    "ProduceInterceptor",
    "ProducerRecord",
    "check_interceptors",
    "listeners",
]


class ProducerRecord(NamedTuple):
    """A record to be written: the arguments of `Producer.send`."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp: int | None = None


# ruff: noqa: ARG002  the methods to override do nothing
class Interceptor:
    """A base class for interceptors, given as `interceptors=[…]` to a Consumer, a ConsumerGroup or a Producer.

    Override any of the methods; an object of another class with any method that the client calls will do as well.
    So will a plain function: it is `on_consume` of a consumer or group, `on_send` of a producer. One object may be given to
    several clients.

    They run on the event loop for each record, in the given order, so they have to be fast. Their exceptions are logged once
    per interceptor and exception type and otherwise ignored. Modeled on Java's ConsumerInterceptor and ProducerInterceptor
    (KIP-42).
    """

    def on_consume(self, record: Record) -> Record | None:
        """Return the record to deliver; None means the record itself. Called once for each record, when it is delivered.

        Another record must have the same topic, partition and offset. The next interceptor gets the returned record.
        """
        return None

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


class _OnConsume(Protocol):
    def on_consume(self, record: Record, /) -> Record | None: ...


class _OnSend(Protocol):
    def on_send(self, record: ProducerRecord, /) -> ProducerRecord | None: ...


class _OnAcknowledgement(Protocol):
    def on_acknowledgement(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: Exception | None, /
    ) -> None: ...


ConsumeInterceptor: TypeAlias = _OnConsume | Callable[[Record], Record | None]
"""What consumers and groups take: an object with `on_consume`, or a function."""

ProduceInterceptor: TypeAlias = (
    _OnSend | _OnAcknowledgement | Callable[[ProducerRecord], ProducerRecord | None]
)
"""What producers take: an object with `on_send`, `on_acknowledgement` or both, or a function: `on_send`."""


CONSUMER_METHODS: Final = ("on_consume",)
"""The methods that a consumer or a group calls; a function stands for the first one."""

PRODUCER_METHODS: Final = ("on_send", "on_acknowledgement")
"""The same of a producer."""


def check_interceptors(interceptors: object, methods: Sequence[str]) -> tuple[Any, ...]:
    """Return the interceptors; raise ConfigError unless each has one of the `methods`, or is a function.

    Coroutine functions are refused: their coroutines would never be awaited.
    """
    rule = f"a list of functions, or of objects with {' or '.join(methods)}: interceptors=[interceptor]"
    if not isinstance(interceptors, Iterable) or isinstance(interceptors, str | bytes):
        raise ConfigError("interceptors", interceptors, rule)
    given = tuple(interceptors)
    for interceptor in given:
        found = _methods_of(interceptor, methods)
        if isinstance(interceptor, type) or not found:
            raise ConfigError("interceptors", interceptor, rule)
        if any(map(is_async, found.values())):
            allowed = "plain functions, or objects with plain methods; not coroutine functions"
            raise ConfigError("interceptors", interceptor, allowed)
    return given


def listeners(
    interceptors: Sequence[object], name: str, methods: Sequence[str], base: type = Interceptor
) -> tuple[tuple[int, Callable[..., Any]], ...]:
    """Return what to call for one of the `methods`: the number of each interceptor that has it, and its function.

    Methods that are those of the class `base`, which do nothing, are left out.
    """
    found = ((number, _methods_of(each, methods).get(name)) for number, each in enumerate(interceptors))
    return tuple(
        (number, method) for number, method in found if method is not None and not _is_of(base, method)
    )


def _methods_of(interceptor: object, methods: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return the methods that an interceptor has, by name. An object without any that can be called is the first one."""
    found = {name: method for name in methods if callable(method := getattr(interceptor, name, None))}
    return found or ({methods[0]: interceptor} if callable(interceptor) else {})


def _is_of(base: type, method: object) -> bool:
    function = getattr(method, "__func__", None)
    return function is not None and function is getattr(base, function.__name__, None)
