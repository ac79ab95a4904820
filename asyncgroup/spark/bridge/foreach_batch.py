"""`ForeachBatch`: a handler that gives a member's records to Spark, batch by batch."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncgroup.checks import check_count, check_pause
from asyncgroup.errors import ConfigError
from asyncgroup.group import Claim, Handler, Session
from asyncgroup.model import TopicPartition
from asyncgroup.spark.bridge.commit_metadata import BatchNumbers
from asyncgroup.spark.bridge.jobs import BatchFunction, SparkJobs
from asyncgroup.spark.bridge.retry import OnError, Retry
from asyncgroup.spark.bridge.session_bridge import BatchOptions, Bridge
from asyncgroup.spark.bridge.start_offsets import StartOffsets, seek_to_starts
from asyncgroup.spark.bridge.statistics import BridgeMetrics, BridgeStatistics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ForeachBatch"]


class ForeachBatch(Handler):
    """Calls `fn(df, batch_id)` with the records of all claims that have some, then marks and commits them.

    `df` has the columns and types of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
    timestampType, and with `include_headers` headers. `batch_id` is a `BatchId`: an int with `.ranges`.

    A batch is made when `max_rows` rows or `max_bytes` bytes (as Arrow) have come, or `max_wait` seconds after its
    first record. `fn` is a plain function; it runs in a thread of its own, one call at a time in a session. Only
    after it returned and its offsets were committed does the next batch start. Meanwhile two more are gathered; then
    the claims read nothing until there is room.

    At least once, exactly once with a sink that overwrites by (topic, partition, start) of each range:

    - `fn` raises: nothing of the batch is committed; the exception leaves `consume()` and `run()` as itself. With
      `on_error=Retry(...)` the call is tried again before: same rows, same ranges, same number. Claims that end during
      a pause end the tries, and the batch is delivered again by whoever gets them. No batch is ever skipped.
    - A rebalance: what is gathered but not begun is dropped; a batch under way has `rebalance_timeout` to end and is
      committed before its claims are given up. One that takes longer is interrupted: its Spark jobs are cancelled (by a
      job tag), nothing of it is marked, and `consume()` and `run()` raise BatchInterrupted.
    - The membership is lost, the group is closed and `close_timeout` over, or the caller cancelled: the batch is
      interrupted as well, without an error. The claims end when `fn`'s thread has: a `fn` that does no Spark work
      cannot be stopped.
    - A commit that may heal is tried again while the session lives; one that cannot raises CommitFailedError.
    - A member that was lost and does not know it yet (frozen, cut off) may write behind its successor, who may have cut
      the ranges in another way: `ParquetByRange`, `Upsert` and `OffsetsInSink` stand that, a plain overwrite does not.

    Exactly once also with a sink that stores its offsets in the transaction of its rows: `start_from(partitions)`, by
    default `fn.start_offsets` if `fn` has such a method, says in a thread where partitions go on. It may leave out those
    it does not know; they start at the group's offset.

    One object serves one member: given to several, each of them calls `fn` in a thread of its own. With a session of
    Spark Connect the rows of each batch go to the server over gRPC, which takes two to three times as long. Raises ConfigError for arguments that will not do.
    """

    def __init__(
        self,
        spark: SparkSession,
        fn: BatchFunction,
        *,
        max_rows: int = 100_000,
        max_bytes: int = 64 * 1024 * 1024,
        max_wait: float = 0.2,
        include_headers: bool = False,
        on_error: OnError = "raise",
        start_from: StartOffsets | None = None,
    ) -> None:
        _check_function("fn", fn, "a plain function (df, batch_id): it is called in a thread")
        for key, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            check_count(key, value)
        check_pause("max_wait", max_wait)
        if on_error != "raise" and not isinstance(on_error, Retry):
            raise ConfigError("on_error", on_error, "'raise' or a Retry")
        if start_from is None:
            start_from = getattr(fn, "start_offsets", None)
        if start_from is not None:
            _check_function(
                "start_from", start_from, "a plain function (partitions): it is called in a thread"
            )
        self._spark, self._fn, self._start_from = spark, fn, start_from
        self._options = BatchOptions(
            max_rows=max_rows,
            max_bytes=max_bytes,
            max_wait=max_wait,
            include_headers=include_headers,
            on_error=on_error,
        )
        self._numbers, self._metrics = BatchNumbers(), BridgeMetrics()
        self.random = random.Random()
        """What the pauses between tries are spread by; seed it for pauses that can be repeated."""
        self._bridges: dict[Session, Bridge] = {}
        self._start_offsets: dict[TopicPartition, int] = {}
        """Where the sink wants partitions that are owned to begin."""

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        return f"<ForeachBatch {name}: {', '.join(map(repr, self._bridges.values())) or 'no session'}>"

    def statistics(self) -> BridgeStatistics:
        """What was delivered so far, and what goes on; to be asked on the event loop, whose time it reads."""
        bridges = self._bridges.values()
        running = next((bridge.running for bridge in bridges if bridge.running), None)
        rows, size = (sum(bridge.queued[part] for bridge in bridges) for part in (0, 1))
        return self._metrics.snapshot(rows, size, running, asyncio.get_running_loop().time())

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Ask the sink where to go on, before any claim reads."""
        for tp in partitions:
            self._start_offsets.pop(tp, None)
        if self._start_from is not None:
            self._start_offsets |= await seek_to_starts(self._start_from, session, partitions)

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        """Hand a claim's records over until it ends, and its last batch with it."""
        bridge = self._bridges.get(session)
        if bridge is None:
            jobs = SparkJobs(self._spark, self._fn)
            bridge = Bridge(session, jobs, self._options, self._numbers, self._metrics, self.random)
            self._bridges[session] = bridge
        state = bridge.open(claim, self._start_offsets.get(TopicPartition(claim.topic, claim.partition)))
        try:
            await bridge.consume(state)
        finally:
            if bridge.leave(state):
                # a claim that comes from now on gets a bridge of its own
                del self._bridges[session]
                await bridge.aclose()


def _check_function(key: str, function: object, allowed: str) -> None:
    call = getattr(function, "__call__", None)  # noqa: B004  its nature matters, not only that it exists
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise ConfigError(key, function, allowed)
