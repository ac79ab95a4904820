"""Per-request context: connection, client id, API version, arrival time (Kafka's `RequestContext`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.net.sasl import Authenticator
from asyncgroup.error_codes import ErrorCode

__all__ = ["RequestContext"]


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

    def check_topic(self, topic: str) -> None:
        """Raise PartitionError if a fault sets an error for the topic."""
        error = self.topic_errors.get(topic)
        if error is not None:
            raise PartitionError(error)
