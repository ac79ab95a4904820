"""How parts of the broker say no to each other; a handler turns these into error codes on the wire."""

from __future__ import annotations

from typing import Final

from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError

__all__ = [
    "AppendError",
    "CloseConnection",
    "PartitionError",
    "Refused",
    "StorageError",
    "UnusedFaults",
    "shortened",
]


_LONGEST: Final = 1000
"""Characters of a sentence; it may quote what a client sent, and there is an end to what an answer can say."""


def shortened(text: str) -> str:
    """A sentence that is not too long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class Refused(AsyncGroupError):
    """Base: an answer with an error `code` and a sentence for humans."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        super().__init__(shortened(message or code.name))


class AppendError(Refused):
    """A batch that may not be appended."""


class StorageError(AppendError):
    """The disk did not do what it had to; the message says what it said, `code` what clients are told."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        super().__init__(code, message)


class PartitionError(Refused):
    """A partition that this node cannot serve as asked; `leader` is (node id, leader epoch) where that helps."""

    def __init__(
        self, code: ErrorCode, message: str | None = None, *, leader: tuple[int, int] | None = None
    ) -> None:
        self.leader = leader
        super().__init__(code, message)


class CloseConnection(Exception):
    """Raised by a handler where Kafka answers by closing the connection; the message goes to the log."""


class UnusedFaults(AsyncGroupError, AssertionError):
    """Faults that were never hit when their cluster ended: the test did not test what it says.

    `faults` describes each. Raised by the cluster's exit, unless an exception is on its way already.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__(
            f"{len(faults)} fault(s) were never hit: {'; '.join(faults)}. Did the client ask what the test thinks? "
            "cluster.history tells; optional() says that a fault need not be hit"
        )
