"""TransactionOperations: the messages and acknowledgements of a transaction whose answers are missing, and its first failure."""

from __future__ import annotations

import asyncio

from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.send_receiver import SendReceiver
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["TransactionOperations", "TransactionSend"]


class TransactionOperations:
    """Counts what is not answered; a transaction ends after all of it."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        """Why the transaction can only be aborted; None if it can be committed."""
        self.may_be_late = False
        """Whether the broker has not answered one of them, and so may process it after the end of the transaction."""
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        return f"<TransactionOperations {self._count} not answered, {self.failure!r}>"

    def begin(self) -> None:
        """A message or a group of acknowledgements begins."""
        self._count += 1
        self._idle.clear()

    def end(self, error: Exception | None = None) -> None:
        """It is answered, or has failed with an error."""
        if error is not None:
            self.fail(error)
            self.may_be_late |= not isinstance(error, PulsarServerError)
        self._count -= 1
        if not self._count:
            self._idle.set()

    def fail(self, error: Exception) -> None:
        """The transaction can only be aborted; the first error is kept."""
        if self.failure is None:
            self.failure = error

    async def wait(self) -> None:
        """Wait until all is answered."""
        await self._idle.wait()


class TransactionSend:
    """The receiver of a message in a transaction: passes the result on to `caller`, None if no caller waits."""

    __slots__ = ("_caller", "_is_done", "_operations")

    def __init__(self, operations: TransactionOperations, caller: SendReceiver | None) -> None:
        self._operations = operations
        self._caller = caller
        self._is_done = False
        operations.begin()

    def __repr__(self) -> str:
        return f"<TransactionSend {'done' if self._is_done else 'not answered'}>"

    def done(self) -> bool:
        """Return whether the message has ended; a caller that is cancelled does not end it."""
        return self._is_done

    def set_result(self, message_id: MessageId, /) -> None:
        """The message is stored."""
        self._end(None)
        if self._caller is not None and not self._caller.done():
            self._caller.set_result(message_id)

    def set_exception(self, error: Exception, /) -> None:
        """The message has failed: so has its transaction."""
        self._end(error)
        if self._caller is not None and not self._caller.done():
            self._caller.set_exception(error)

    def withdraw(self) -> None:
        """The message was not accepted; the caller gets the error from its call."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_done:
            self._is_done = True
            self._operations.end(error)
