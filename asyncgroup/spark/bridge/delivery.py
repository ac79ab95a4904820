"""What the bridge of a session is made of: a place for each claim, and the batch that is under way."""

from __future__ import annotations

import asyncio

from asyncgroup.errors import AsyncGroupError, PartitionsChanged, Rebalanced, TopicsChanged
from asyncgroup.group import Claim
from asyncgroup.model import TopicPartition
from asyncgroup.spark.bridge.batch_id import BatchId
from asyncgroup.spark.bridge.gatherer import Piece, ranges_of
from asyncgroup.spark.bridge.numbers import first_start
from asyncgroup.spark.bridge.retry import Tries

__all__ = ["BatchInterrupted", "Delivery", "Lane"]


class BatchInterrupted(AsyncGroupError):
    """A rebalance could not wait for a batch any longer: its Spark jobs were cancelled, and nothing of it was committed.

    The batch is delivered again, by whoever gets its partitions. It needs smaller batches (`max_rows`, `max_bytes`) or
    a longer `rebalance_timeout`, or it will meet the same end.
    """


class Lane:
    """A claim's place in the bridge. `position` is where its next range starts."""

    def __init__(self, claim: Claim, start: int | None) -> None:
        self.claim = claim
        self.tp = TopicPartition(claim.topic, claim.partition)
        self.position = first_start(claim) if start is None else start
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """What this claim has to raise for the whole bridge."""

    @property
    def is_rebalanced(self) -> bool:
        """Whether the claim ended because the group shares its partitions out anew."""
        return isinstance(self.claim.cause, (Rebalanced, PartitionsChanged, TopicsChanged))


class Delivery:
    """A batch that was begun: `freed` is done when no call is made any more, `over` when its offsets are committed too."""

    def __init__(self, pieces: list[Piece], number: int, tries: Tries, now: float) -> None:
        loop = asyncio.get_running_loop()
        self.pieces = sorted(pieces, key=lambda piece: (piece.tp, piece.start))
        self.batch_id = BatchId(number, ranges_of(self.pieces))
        self.partitions = {piece.tp for piece in pieces}
        self.tries, self.began = tries, now
        self.is_last_try = asyncio.Event()
        """Set when a claim of the batch has ended, or is cancelled: what runs may end, but nothing is begun any more."""
        self.interrupt: asyncio.Future[None] = loop.create_future()
        self.freed: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()

    def __repr__(self) -> str:
        return f"<Delivery of {self.batch_id!r}: {self.tries.failures} failures>"

    @property
    def rows(self) -> int:
        """How many records it has."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def bytes(self) -> int:
        """How large it is, in Arrow."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def is_interrupted(self) -> bool:
        """Whether the batch counts as not done, whatever comes of it."""
        return self.interrupt.done()

    def interrupt_now(self) -> bool:
        """Let the function end soon, and begin nothing; nothing of the batch is marked. Whether that was news."""
        if self.freed.done() or self.interrupt.done():
            return False
        self.interrupt.set_result(None)
        self.is_last_try.set()  # who waits to try again need not
        return True
