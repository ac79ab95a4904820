"""Exceptions inside the broker; handlers turn them into error codes on the wire."""

from __future__ import annotations

from typing import Final

from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError

__all__ = [
    "AppendError",
    "CloseConnection",
    "KafkaStorageError",
    "PartitionError",
    "Refused",
    "UnusedFaults",
    "shortened",
]


_LONGEST: Final = 1000
"""Longest error message in characters: it may quote what a client sent, and a response's string field is limited."""


def shortened(text: str) -> str:
    """Return `text`, cut to the longest allowed error message."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class Refused(AsyncGroupError):
    """Base class: the request is refused with an error `code` and a readable message."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        super().__init__(shortened(message or code.name))


class AppendError(Refused):
    """A batch was refused by the log."""


class KafkaStorageError(AppendError):
    """A disk operation failed (Kafka's `KafkaStorageException`).

    The message holds the error of the operating system; clients get only `code`.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        super().__init__(code, message)


class PartitionError(Refused):
    """This node cannot serve the partition.

    `leader` is the current (node id, leader epoch), None if it need not be sent to the client.
    """

    def __init__(
        self, code: ErrorCode, message: str | None = None, *, leader: tuple[int, int] | None = None
    ) -> None:
        self.leader = leader
        super().__init__(code, message)


class CloseConnection(Exception):
    """Raised by a handler where Kafka closes the connection instead of responding; the message is logged."""


class UnusedFaults(AsyncGroupError, AssertionError):
    """Faults that no request matched before their cluster ended: the test did not exercise what it set up.

    `faults` describes each. Raised by the cluster's exit, unless another exception is already propagating.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__(
            f"{len(faults)} fault(s) were never hit: {'; '.join(faults)}. cluster.history shows which requests were "
            "sent; mark a fault that need not be hit with optional()"
        )
