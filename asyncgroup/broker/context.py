"""What is known of a request besides its message."""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.sasl import Authenticator
from asyncgroup.error_codes import ErrorCode

__all__ = ["RequestContext"]


@dataclass(slots=True)
class RequestContext:
    """Who asks, in which version, and when (`time` is the loop's, in seconds).

    `topic_errors` is filled by a fault: what to answer for a topic's partitions instead of looking at them.
    `authenticator` is that of the connection, None where the listener has no SASL.
    """

    time: float
    node_id: int
    client_id: str
    client_host: str
    api: str
    api_key: int
    api_version: int
    correlation_id: int
    topic_errors: dict[str, ErrorCode] = field(default_factory=dict)
    authenticator: Authenticator | None = None

    def check_topic(self, topic: str) -> None:
        """Raises PartitionError if a fault asks for it."""
        error = self.topic_errors.get(topic)
        if error is not None:
            raise PartitionError(error)
