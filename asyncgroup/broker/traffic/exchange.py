"""RecordedExchange: a request that has arrived and, once it is sent, its response."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["RecordedExchange", "RequestInfo"]


class RequestInfo(Protocol):
    """What is known of a request besides its message."""

    @property
    def time(self) -> float:
        """Arrival, loop time in seconds."""

    @property
    def node_id(self) -> int:
        """The node that it arrived at."""

    @property
    def client_id(self) -> str:
        """The name that the client gives itself."""

    @property
    def connection(self) -> int:
        """The number of the connection that it came on."""

    @property
    def api(self) -> str:
        """The name of its kind in the protocol's documentation."""

    @property
    def api_version(self) -> int:
        """The version of its message; 0 in a protocol without versions."""


class RecordedExchange:
    """One request and, once it is sent, its response.

    `time` is the loop time of arrival in seconds, `answered_at` that of the response (None: no response yet, or
    never). `request_bytes` and `response_bytes` are the sizes of the frames.
    """

    __slots__ = (
        *("answered_at", "api", "client_id", "node_id", "request"),
        *("request_bytes", "response", "response_bytes", "time", "version"),
    )

    def __init__(self, info: RequestInfo, request: Any, size: int) -> None:
        self.time: float = info.time
        self.node_id: int = info.node_id
        self.client_id: str = info.client_id
        self.api: str = info.api
        self.version: int = info.api_version
        self.request = request
        self.response: Any = None
        self.answered_at: float | None = None
        self.request_bytes = size
        self.response_bytes = 0

    def __repr__(self) -> str:
        state = "no answer" if self.answered_at is None else f"answered at {self.answered_at:.3f}"
        return (
            f"<{type(self).__name__} {self.time:.3f} node {self.node_id} {self.api} v{self.version} "
            f"from {self.client_id!r}, {state}>"
        )

    @property
    def duration(self) -> float | None:
        """Seconds from arrival to response, None without a response."""
        return None if self.answered_at is None else self.answered_at - self.time
