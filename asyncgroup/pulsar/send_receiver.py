"""SendReceiver: receives the result of a message that was sent."""

from __future__ import annotations

from typing import Protocol

from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["SendReceiver"]


class SendReceiver(Protocol):
    """Receives the result of a message: the future of its caller, or what stands in its place."""

    def done(self) -> bool:
        """Return whether it needs no result any more."""

    def set_result(self, message_id: MessageId, /) -> None:
        """The message is stored."""

    def set_exception(self, error: Exception, /) -> None:
        """The message has failed."""
