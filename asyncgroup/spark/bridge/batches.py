"""A batch from the first call of the function to its commit: claims, retries (`Retry`), interruption (`BatchInterrupted`)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from asyncgroup.checks import check_count, check_duration_or_zero
from asyncgroup.errors import AsyncGroupError, ConfigError, PartitionsChanged, Rebalanced, TopicsChanged
from asyncgroup.group import Claim
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.spark.bridge.record_queue import Chunk, chunk_ranges
from asyncgroup.spark.ranges import BatchId
from asyncgroup.spark.requirements import SparkUnavailable

__all__ = ["BatchInterrupted", "BridgedClaim", "OnError", "Retry", "RetryState", "RunningBatch"]


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Retry a batch: call the function again with the same rows, ranges and number, up to `times` more times.

    The pauses double from `backoff` to `backoff_max` seconds, with a jitter of 20 % either way (KIP-580). Only instances
    of `only` are retried, and never SparkUnavailable, which no retry can fix. After the last attempt the exception is
    raised as without retries: no batch is ever skipped. Raises ConfigError.
    """

    times: int = 5
    backoff: float = 0.5
    """Seconds."""
    backoff_max: float = 30.0
    """Seconds."""
    only: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        check_count("times", self.times)
        check_duration_or_zero("backoff", self.backoff)
        check_duration_or_zero("backoff_max", self.backoff_max)
        kinds = self.only
        if not isinstance(kinds, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
        ):
            raise ConfigError("only", kinds, "a tuple of subclasses of Exception")


OnError: TypeAlias = Literal["raise"] | Retry
"""What `ForeachBatch` does if the function raises."""


class RetryState:
    """Failed calls of the function for one batch, and the pause before the next one."""

    def __init__(self, on_error: OnError, rng: random.Random) -> None:
        self._only: tuple[type[Exception], ...] = ()
        self.retry = RetryLoop(RetryBackoff(0, 0, rng))
        """The pause before the next call."""
        self.failures = 0
        if isinstance(on_error, Retry):
            self._only = on_error.only
            self.retry = RetryLoop(
                RetryBackoff(on_error.backoff, on_error.backoff_max, rng), retries=on_error.times
            )

    def failed(self, error: BaseException) -> bool:
        """Record a failure; return whether the function is called again."""
        self.failures += 1
        is_retriable = isinstance(error, self._only) and not isinstance(error, SparkUnavailable)
        return is_retriable and self.retry.failed()


class BatchInterrupted(AsyncGroupError):
    """A batch did not finish within the rebalance timeout: its Spark jobs were cancelled, and nothing was committed.

    The batch is delivered again to the partitions' next owners. Use smaller batches (`max_rows`, `max_bytes`) or a longer
    `rebalance_timeout`, otherwise it is interrupted again. Raised after an eager rebalance only: with the other protocols
    the session goes on, and the interruption is logged and counted (`BridgeStatistics.interrupted`).
    """


class BridgedClaim:
    """A claim with its state in the bridge."""

    def __init__(self, claim: Claim, start: int) -> None:
        self.claim = claim
        self.tp = TopicPartition(claim.topic, claim.partition)
        self.position = start
        """Where the claim's next range starts."""
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done with the exception that this claim's `consume` must raise on behalf of the bridge."""

    @property
    def ended_by_rebalance(self) -> bool:
        """Whether the claim ended because of a rebalance."""
        return isinstance(self.claim.cause, (Rebalanced, PartitionsChanged, TopicsChanged))


class RunningBatch:
    """A batch from the first call of the function to the commit of its offsets."""

    def __init__(
        self,
        chunks: list[Chunk],
        claims: Mapping[TopicPartition, BridgedClaim],
        number: int,
        retries: RetryState,
        now: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.chunks = sorted(chunks, key=lambda chunk: (chunk.tp, chunk.start))
        self.batch_id = BatchId(number, chunk_ranges(self.chunks))
        self.claims = {chunk.tp: claims[chunk.tp] for chunk in self.chunks}
        """The claims whose records it has. Their partitions may have other claims by the time the function returns."""
        self.retries = retries
        self.started_at = now
        self.no_retry = asyncio.Event()
        """Set when a claim of the batch has ended or is cancelled: the running call may finish, but none is started."""
        self.interrupted: asyncio.Future[None] = loop.create_future()
        """Done when the Spark jobs of the batch must be cancelled and its result discarded."""
        self.function_ended: asyncio.Future[None] = loop.create_future()
        """Done when the function has returned for the last time."""
        self.finished: asyncio.Future[None] = loop.create_future()
        """Done when the offsets are also committed, or the batch has failed."""

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

    def has_records_of(self, claim: BridgedClaim | None) -> bool:
        """Whether records of this claim, not of another one of its partition, are in the batch."""
        return claim is not None and self.claims.get(claim.tp) is claim

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
