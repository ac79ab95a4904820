"""`ForeachBatch`: a handler that gives a member's records to Spark, batch by batch."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING

from asyncgroup.checks import check_count, check_pause
from asyncgroup.errors import ConfigError
from asyncgroup.group import Claim, Handler, Session
from asyncgroup.spark.bridge.gatherer import Gatherer
from asyncgroup.spark.bridge.jobs import BatchFunction, SparkJobs
from asyncgroup.spark.bridge.session_bridge import Bridge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ForeachBatch"]


class ForeachBatch(Handler):
    """Calls `fn(df, batch_id)` with the records of all claims that have some, then marks and commits them.

    `df` has the columns and types of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
    timestampType, and with `include_headers` headers. `batch_id` is a `BatchId`: an int with `.ranges`.

    A batch is made when `max_rows` rows or `max_bytes` bytes (as Arrow) have come, or `max_wait` seconds after its
    first record. `fn` is a plain function; it runs in a thread of its own, one call at a time in a session. Only
    after it returned and its offsets were committed does the next batch of these partitions start.

    At least once, exactly once with a sink that overwrites by (topic, partition, start) of each range:

    - `fn` raises: nothing of the batch is committed; the exception leaves `consume()` and `run()` as itself.
    - A rebalance: what is gathered but not begun is dropped; a batch under way has `rebalance_timeout` to end and is
      committed before its claims are given up.
    - The membership is lost, or the handler is cancelled: the batch's Spark jobs are cancelled (by a job tag), nothing
      of it is marked, and the claims end when `fn`'s thread has. A `fn` that does no Spark work cannot be stopped.
    - A commit that may heal is tried again while the session lives; one that cannot raises CommitFailedError.

    One object serves one member: given to several, each of them calls `fn` in a thread of its own. Needs a classic
    session, not Spark Connect. Raises ConfigError for arguments that will not do.
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
    ) -> None:
        if inspect.iscoroutinefunction(fn) or not callable(fn):
            raise ConfigError("fn", fn, "a plain function (df, batch_id): it is called in a thread")
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            raise ConfigError(
                "spark", spark, "a classic SparkSession; Spark Connect has no job tags to cancel by"
            )
        for key, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            check_count(key, value)
        check_pause("max_wait", max_wait)
        self._spark, self._fn = spark, fn
        self._max_rows, self._max_bytes, self._max_wait = max_rows, max_bytes, max_wait
        self._include_headers = include_headers
        self._numbers = itertools.count()
        self._bridges: dict[Session, Bridge] = {}

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        return f"<ForeachBatch {name}: {', '.join(map(repr, self._bridges.values())) or 'no session'}>"

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        """Hand a claim's records over until it ends, and its last batch with it."""
        bridge = self._bridges.get(session)
        if bridge is None:
            bridge = self._bridges[session] = self._bridge(session)
        lane = bridge.open(claim)
        try:
            await bridge.consume(lane)
        finally:
            if bridge.leave(lane):
                # a claim that comes from now on gets a bridge of its own
                del self._bridges[session]
                await bridge.aclose()

    def _bridge(self, session: Session) -> Bridge:
        return Bridge(
            session,
            SparkJobs(self._spark, self._fn),
            Gatherer(self._max_rows, self._max_bytes),
            self._numbers,
            max_wait=self._max_wait,
            include_headers=self._include_headers,
        )
