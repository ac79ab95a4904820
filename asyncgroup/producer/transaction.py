"""The context manager of a transaction."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from asyncgroup.model import GroupOffsets
from asyncgroup.producer.transaction_client import TransactionClient
from asyncgroup.producer.transaction_state import TransactionPhase

__all__ = ["HasGroupOffsets", "Transaction"]


class HasGroupOffsets(Protocol):
    """What can tell the offsets of a group and the member that commits them, as a session."""

    def group_offsets(self) -> GroupOffsets:
        """Return the next offsets to read, and the member's id and generation."""


class Transaction:
    """A transaction of a producer: the block commits it at its end, and aborts it if it raises or is cancelled.

        async with producer.transaction():
            await producer.send("orders", b"one dozen")

    Returned by `Producer.transaction`; used once.
    """

    def __init__(self, client: TransactionClient) -> None:
        self._client = client
        self._state = "not begun"

    def __repr__(self) -> str:
        return f"<Transaction of {self._client.transactional_id!r}: {self._state}>"

    async def __aenter__(self) -> Self:
        await self._client.begin()
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "ended"
        if self._client.manager.state is TransactionPhase.DETACHED:
            self._state = "detached"
        elif kind is None:
            await self._client.commit()
            self._state = "committed"
        else:
            await self._client.abort()
            self._state = "aborted"
