"""A request being served: its context, its API's handler, and what a connection needs from the broker to serve it.

`net` itself knows no API: `control.call` implements the service.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.net.sasl import Authenticator
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.message import Message
from asyncgroup.wire.schema import VersionRange

__all__ = ["ApiHandler", "Call", "RequestContext", "RequestService", "ResponseFault"]


@dataclass(slots=True)
class RequestContext:
    """Who sent a request, in which API version, and when."""

    time: float
    """Arrival, loop time in seconds."""
    node_id: int
    client_id: str
    client_host: str
    api: str
    api_key: int
    api_version: int
    correlation_id: int
    topic_errors: dict[str, ErrorCode] = field(default_factory=dict)
    """Errors by topic name that a fault sets; they are returned for the topic's partitions, which are not read or
    written.
    """
    authenticator: Authenticator | None = None
    """The connection's authenticator; None if the listener has no SASL."""
    connection: int = 0
    """The number of the connection that the request came on."""

    def check_topic(self, topic: str) -> None:
        """Raise PartitionError if a fault sets an error for the topic."""
        error = self.topic_errors.get(topic)
        if error is not None:
            raise PartitionError(error)


class ApiHandler(NamedTuple):
    """An API that the broker serves.

    `handle(node, context, request)` returns the response, a future of it, or None for no response;
    `error_response(context, request, code)` returns a response with this error only
    (`AbstractRequest.getErrorResponse`).
    """

    name: str
    key: int
    versions: VersionRange
    handle: Callable[..., Any]
    error_response: Callable[..., Any]


class ResponseFault(Protocol):
    """What an injected fault does to a response, see `broker.Fault`."""

    @property
    def cut(self) -> str | None:
        """When to close the connection: "before", "after", "mid-frame" or never."""

    @property
    def drops_response(self) -> bool:
        """Whether the response is never sent."""

    @property
    def throttle_ms(self) -> int:
        """For how many ms the connection is muted (0: it is not)."""


class Call(Protocol):
    """One request being served."""

    @property
    def context(self) -> RequestContext:
        """Who sent the request, in which version."""

    @property
    def fault(self) -> ResponseFault | None:
        """The fault that applies, if any."""

    def handle(self) -> Any:
        """Return the response, a future or coroutine of it, or None for no response. Raise CloseConnection."""

    def handle_failure(self, error: BaseException) -> Any:
        """Log the exception that the handler raised while it was awaited, and return the error response."""

    def error_response(self, code: ErrorCode) -> Any:
        """Return a response that carries only this error. Raise CloseConnection if the API has none."""

    def record_response(self, response: Any, size: int, now: float) -> None:
        """Record the response: `size` bytes, encoded at `now` (loop time)."""

    def release_payloads(self) -> None:
        """Called once the response is written, or when there will be none."""


class RequestService(Protocol):
    """Serves the requests to one node."""

    def handler(self, api_key: int) -> ApiHandler | None:
        """Return the handler of an API, None if it is not served."""

    def unsupported_version(self) -> Message:
        """Return the response to an ApiVersions request of an unsupported version; it is sent in version 0."""

    def call(self, context: RequestContext, handler: ApiHandler, request: Any, size: int) -> Call:
        """Return the call for a request whose frame has `size` bytes."""
