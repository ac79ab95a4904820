"""What the bridge of a session is made of: a place for each claim, and the batch that is under way."""

from __future__ import annotations

import asyncio

from asyncgroup.errors import AsyncGroupError, PartitionsChanged, Rebalanced, TopicsChanged
from asyncgroup.group import Claim
from asyncgroup.model import TopicPartition
from asyncgroup.spark.bridge.batch_id import BatchId
from asyncgroup.spark.bridge.commit_metadata import first_range_start
from asyncgroup.spark.bridge.record_queue import Chunk, chunk_ranges
from asyncgroup.spark.bridge.retry import RetryState

__all__ = ["BatchInterrupted", "ClaimState", "RunningBatch"]


class BatchInterrupted(AsyncGroupError):
    """A rebalance could not wait for a batch any longer: its Spark jobs were cancelled, and nothing of it was committed.

    The batch is delivered again, by whoever gets its partitions. It needs smaller batches (`max_rows`, `max_bytes`) or
    a longer `rebalance_timeout`, or it will meet the same end.
    """


class ClaimState:
    """A claim's place in the bridge. `position` is where its next range starts."""

    def __init__(self, claim: Claim, start: int | None) -> None:
        self.claim = claim
        self.tp = TopicPartition(claim.topic, claim.partition)
        self.position = first_range_start(claim) if start is None else start
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """What this claim has to raise for the whole bridge."""

    @property
    def ended_by_rebalance(self) -> bool:
        """Whether the claim ended because the group shares its partitions out anew."""
        return isinstance(self.claim.cause, (Rebalanced, PartitionsChanged, TopicsChanged))


class RunningBatch:
    """A batch that was begun: `function_ended` is done when no call is made any more, `finished` when its offsets are committed too."""

    def __init__(self, chunks: list[Chunk], number: int, retries: RetryState, now: float) -> None:
        loop = asyncio.get_running_loop()
        self.chunks = sorted(chunks, key=lambda chunk: (chunk.tp, chunk.start))
        self.batch_id = BatchId(number, chunk_ranges(self.chunks))
        self.partitions = {chunk.tp for chunk in chunks}
        self.retries, self.started_at = retries, now
        self.no_retry = asyncio.Event()
        """Set when a claim of the batch has ended, or is cancelled: what runs may end, but nothing is begun any more."""
        self.interrupted: asyncio.Future[None] = loop.create_future()
        self.function_ended: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()

    def __repr__(self) -> str:
        return f"<RunningBatch {self.batch_id!r}: {self.retries.failures} failures>"

    @property
    def rows(self) -> int:
        """How many records it has."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def bytes(self) -> int:
        """How large it is, in Arrow."""
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def is_interrupted(self) -> bool:
        """Whether the batch counts as not done, whatever comes of it."""
        return self.interrupted.done()

    def interrupt(self) -> bool:
        """Let the function end soon, and begin nothing; nothing of the batch is marked. Whether that was news."""
        if self.function_ended.done() or self.interrupted.done():
            return False
        self.interrupted.set_result(None)
        self.no_retry.set()  # who waits to try again need not
        return True
