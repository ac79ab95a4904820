"""`ForeachBatch`: a consumer group handler that passes records to Spark in batches, like Spark's foreachBatch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from asyncgroup.checks import check_offset
from asyncgroup.errors import ConfigError
from asyncgroup.group import Claim, Handler, Session
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.model import TopicPartition
from asyncgroup.spark.bridge.arguments import BridgeArguments, check_batch_limits, check_flag
from asyncgroup.spark.bridge.batches import OnError, Retry
from asyncgroup.spark.bridge.commits import BatchNumbers, from_metadata, to_metadata
from asyncgroup.spark.bridge.jobs import BatchFunction, SparkJobs, check_function
from asyncgroup.spark.bridge.session_bridge import BatchOptions, Bridge
from asyncgroup.spark.bridge.statistics import BridgeMetrics, BridgeStatistics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ForeachBatch"]

StartOffsetsFunction: TypeAlias = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]
"""A sync function that returns the next offset to read for each of these partitions; it leaves out unknown ones."""


class ForeachBatch(BridgeArguments, Handler):
    """Calls `fn(df, batch_id)` with records of the member's claims, then marks and commits them.

    `df` has the columns and types of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
    timestampType, and with `include_headers` headers. `batch_id` is a `BatchId`: an int with `.ranges`.

    A batch starts when `max_rows` rows or `max_bytes` bytes (as Arrow data) are available, or `max_wait` seconds after its
    first record. `fn` is a sync function; it runs in a thread, one call at a time per session. The next batch starts only
    after `fn` has returned and its offsets are committed. Until then up to two batches are queued; then the claims stop
    reading until there is room.

    Delivery is at least once, and exactly once with a sink that overwrites by (topic, partition, start) of each range:

    - `fn` raises: nothing of the batch is committed; the exception leaves `consume()` and `run()` unchanged. With
      `on_error=Retry(...)` the call is retried first: same rows, same ranges, same number. If claims of the batch end
      during a pause, there is no further attempt, and the batch is delivered to their next owners. No batch is skipped.
    - Rebalance: queued records of a revoked claim that are not in the running batch are dropped. A running batch with
      records of a revoked claim has `rebalance_timeout` to finish, and is committed before the claim is revoked. If it takes
      longer, it is interrupted: its Spark jobs are cancelled (by a job tag), and nothing of it is marked. An eager rebalance
      revokes all claims, and `consume()` and `run()` raise BatchInterrupted. A cooperative rebalance and one of the consumer
      protocol leave batches without records of a revoked claim alone, and the session goes on: rows of an interrupted
      batch that belong to claims that stay are delivered again in its next batch.
    - The member is lost, or the group is closed and `close_timeout` has passed, or the caller is cancelled: the batch is
      also interrupted, without an error. The claims end when `fn`'s thread has ended: a `fn` that does no Spark work
      cannot be stopped.
    - A retriable commit error is retried while the session lasts; any other raises CommitFailedError.
    - A member that has been fenced without noticing it (suspended, disconnected) may write after its successor, whose
      ranges may be cut in another way: `ParquetByRange`, `Upsert` and `OffsetsInSink` handle that, a plain overwrite does
      not.

    Delivery is exactly once also with a sink that stores offsets and rows in one transaction: `start_from(partitions)`, by
    default `fn.start_offsets` if `fn` has such a method, runs in a thread and returns where partitions start. Partitions
    that it leaves out start at the group's offset.

    Use one object per member: members that share one call `fn` in a thread each, at the same time. With Spark Connect the
    rows of each batch go to the server over gRPC, which takes two to three times as long.

    Raises ConfigError for an argument that is not allowed.
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
        start_from: StartOffsetsFunction | None = None,
    ) -> None:
        check_function("fn", fn, "a sync function (df, batch_id), which is called in a thread")
        check_batch_limits(max_rows, max_bytes, max_wait, may_be_zero=True)
        check_flag("include_headers", include_headers)
        if on_error != "raise" and not isinstance(on_error, Retry):
            raise ConfigError("on_error", on_error, "'raise' or a Retry")
        if start_from is None:
            start_from = getattr(fn, "start_offsets", None)
        if start_from is not None:
            check_function(
                "start_from", start_from, "a sync function (partitions), which is called in a thread"
            )
        self._spark = spark
        self._fn = fn
        self._start_from = start_from
        self._options = BatchOptions(
            max_rows=max_rows,
            max_bytes=max_bytes,
            max_wait=max_wait,
            include_headers=include_headers,
            on_error=on_error,
        )
        self._numbers = BatchNumbers()
        self._metrics = BridgeMetrics()
        self._random = random.Random()
        """The source of jitter for pauses between retries; seed it for reproducible pauses."""
        self._bridges: dict[Session, Bridge] = {}
        self._start_offsets: dict[TopicPartition, int] = {}
        """Where the sink has asked owned partitions to start."""

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        return f"<ForeachBatch {name}: {', '.join(map(repr, self._bridges.values())) or 'no session'}>"

    def statistics(self) -> BridgeStatistics:
        """Return counters and the current state. Call it on the event loop, whose clock it reads."""
        bridges = self._bridges.values()
        running = next((bridge.running for bridge in bridges if bridge.running), None)
        rows, size = (sum(bridge.queued[part] for bridge in bridges) for part in (0, 1))
        return self._metrics.snapshot(rows, size, running, asyncio.get_running_loop().time())

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Get start offsets from the sink, before any claim reads."""
        for tp in partitions:
            self._start_offsets.pop(tp, None)
        if self._start_from is not None:
            self._start_offsets |= await _seek_to_starts(self._start_from, session, partitions)

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        """Process a claim's records until the claim and its last batch have ended."""
        bridge = self._bridges.get(session)
        if bridge is None:
            jobs = SparkJobs(self._spark, self._fn)
            bridge = Bridge(session, jobs, self._options, self._numbers, self._metrics, self._random)
            self._bridges[session] = bridge
        state = bridge.add_claim(claim, self._start_offsets.get(TopicPartition(claim.topic, claim.partition)))
        try:
            await bridge.consume(state)
        finally:
            if bridge.remove_claim(state):
                # removed before the await: a claim that starts during it gets a new bridge
                del self._bridges[session]
                await bridge.aclose()


# --- offsets that the sink has stored with its rows, in place of the group's ------------------------------------------


async def _seek_to_starts(
    start_from: StartOffsetsFunction, session: Session, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Seek the claims of `partitions`, and their marks, to the offsets that `start_from` returns; it runs in a thread.

    Returns these offsets. Claims that it leaves out start at the group's offset. Raises what `start_from` raises, and
    ConfigError if it returns something else than offsets of these partitions.
    """
    if not partitions:
        return {}
    starts = _validated(await _in_thread(start_from, partitions), partitions)
    claims = {TopicPartition(claim.topic, claim.partition): claim for claim in session.claims}
    for tp, offset in sorted(starts.items()):
        if tp in claims:
            _move_claim(session, claims[tp], offset)
    return starts


def _move_claim(session: Session, claim: Claim, offset: int) -> None:
    """Move a claim's position and mark to `offset`, forwards or backwards: the sink's offset wins over the group's."""
    place, metadata = (claim.topic, claim.partition, offset), claim.initial_metadata
    if (last := from_metadata(metadata)) is not None:
        metadata = to_metadata(last.number, offset)
    if offset > claim.next_mark:
        session.mark_offset(*place, metadata)
    elif offset < claim.next_mark:
        session.reset_offset(*place, metadata)
    if offset != claim.position:
        claim.seek(offset)


async def _in_thread(
    start_from: StartOffsetsFunction, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Call `start_from` in a thread. A thread cannot be cancelled: a caller that is cancelled waits for its end."""

    def call() -> Mapping[TopicPartition, int] | BaseException:
        try:
            return start_from(list(partitions))
        except BaseException as error:  # noqa: BLE001  raised in the event loop; a future cannot hold StopIteration
            return error

    with ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-start-offsets") as thread:
        found = await wait_shielded(asyncio.get_running_loop().run_in_executor(thread, call))
    if isinstance(found, BaseException):
        raise found
    return found


def _validated(found: object, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    if not isinstance(found, Mapping):
        raise ConfigError("start_from", found, "a function that returns offsets by TopicPartition")
    starts = {TopicPartition(*tp): check_offset(offset) for tp, offset in found.items()}
    if strange := sorted(starts.keys() - set(partitions)):
        raise ConfigError("start_from", ", ".join(map(str, strange)), "offsets of the partitions asked for")
    return starts
