"""State of a session's bridge: one `BridgedClaim` per claim, and the `RunningBatch` that is being processed."""

from __future__ import annotations

import asyncio

from asyncgroup.errors import AsyncGroupError, PartitionsChanged, Rebalanced, TopicsChanged
from asyncgroup.group import Claim
from asyncgroup.model import TopicPartition
from asyncgroup.spark.bridge.commit_metadata import first_range_start
from asyncgroup.spark.bridge.record_queue import Chunk, chunk_ranges
from asyncgroup.spark.bridge.retry import RetryState
from asyncgroup.spark.ranges import BatchId

__all__ = ["BatchInterrupted", "BridgedClaim", "RunningBatch"]


class BatchInterrupted(AsyncGroupError):
    """A batch did not finish within the rebalance timeout: its Spark jobs were cancelled, and nothing was committed.

    The batch is delivered again to the partitions' next owners. Use smaller batches (`max_rows`, `max_bytes`) or a longer
    `rebalance_timeout`, otherwise it is interrupted again.
    """


class BridgedClaim:
    """A claim with its state in the bridge."""

    def __init__(self, claim: Claim, start: int | None) -> None:
        self.claim = claim
        self.tp = TopicPartition(claim.topic, claim.partition)
        self.position = first_range_start(claim) if start is None else start
        """Where the claim's next range starts."""
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done with the exception that this claim's `consume` must raise on behalf of the bridge."""

    @property
    def ended_by_rebalance(self) -> bool:
        """Whether the claim ended because of a rebalance."""
        return isinstance(self.claim.cause, (Rebalanced, PartitionsChanged, TopicsChanged))


class RunningBatch:
    """A batch from the first call of the function to the commit of its offsets."""

    def __init__(self, chunks: list[Chunk], number: int, retries: RetryState, now: float) -> None:
        loop = asyncio.get_running_loop()
        self.chunks = sorted(chunks, key=lambda chunk: (chunk.tp, chunk.start))
        self.batch_id = BatchId(number, chunk_ranges(self.chunks))
        self.partitions = {chunk.tp for chunk in chunks}
        self.retries = retries
        self.started_at = now
        self.no_retry = asyncio.Event()
        """Set when a claim of the batch has ended or is cancelled: the running call may finish, but none is started."""
        self.interrupted: asyncio.Future[None] = loop.create_future()
        """Done when the Spark jobs of the batch must be cancelled and its result discarded."""
        self.function_ended: asyncio.Future[None] = loop.create_future()
        """Done when the function has returned for the last time."""
        self.finished: asyncio.Future[None] = loop.create_future()
        """Done when the offsets are committed, too, or the batch has failed."""

    def __repr__(self) -> str:
        return f"<RunningBatch {self.batch_id!r}: {self.retries.failures} failures>"

    @property
    def rows(self) -> int:
        """Number of records in the batch."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def bytes(self) -> int:
        """Size of the batch as Arrow data."""
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def is_interrupted(self) -> bool:
        """Whether the batch was interrupted: it counts as not processed, even if the function returns."""
        return self.interrupted.done()

    def interrupt(self) -> bool:
        """Interrupt the batch: cancel its jobs, start no retry, mark nothing. Return False if that has no effect any more."""
        if self.function_ended.done() or self.interrupted.done():
            return False
        self.interrupted.set_result(None)
        self.no_retry.set()  # ends a pause before a retry
        return True
