"""Injected faults in Kafka's protocol: the error of a response, its throttle time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from asyncgroup.broker.traffic.injection import Injection
from asyncgroup.broker.traffic.matching import RequestFilter
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.message import copy_message

__all__ = ["InjectedError", "KafkaInjection"]


class InjectedError(NamedTuple):
    """The error of a response: of all that the request names, or of one topic."""

    code: ErrorCode
    topic: str | None
    """The topic that the error is limited to; None without a limit."""


class KafkaInjection(Injection):
    """A fault in Kafka's messages. Its `error` is an InjectedError."""

    def __init__(
        self,
        description: str,
        matches: RequestFilter,
        nth: int,
        times: int | None,
        on_failure: Callable[[BaseException], object],
    ) -> None:
        super().__init__(description, matches, nth, times, on_failure, copy_message)
        self.error: InjectedError | None = None
        self.throttle_ms = 0
        """The throttle time of the response, for which the connection is muted; 0 without one."""

    def apply_mutations(self, response: Any) -> Any:
        """Return a copy of the response with all mutations applied; the connection then writes the throttle time into it."""
        if self.throttle_ms and not self.mutations:
            return copy_message(response)
        return super().apply_mutations(response)
