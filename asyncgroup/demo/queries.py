"""Spark in the demonstration: its start, and its queries over the topic of flights while the group consumes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncgroup.config import ProducerConfig
from asyncgroup.demo.expected import HourFigures, HourKey, PipelineFigures, StreakFigures
from asyncgroup.demo.progress import DemoFailed
from asyncgroup.demo.target import PARTITIONS, DemoTarget
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.producer import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from asyncgroup.spark.examples.flights.pipeline import QueryProgress

__all__ = ["Queries", "figures", "start_spark"]

POLL_INTERVAL: Final = 0.3
"""Seconds between two reads of the queries' progress."""

BATCHES: Final = 2
"""Batches in which the year is read: more than one, so that the watermark advances."""

PAUSES: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds before the queries run again: on a busy machine Spark's Python workers may time out, until it is less so."""

LATER: Final = 30 * 24 * 60
"""Minutes from the last flight to the event time of the heartbeat: more than the watermark's delay."""

CONFIG: Final = {
    # a short run is faster with only the first stage of Java's compiler: 24 s of CPU instead of 40
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Python workers are forked with pandas imported; importing it in each of them takes 10 s in all on two cores
    "spark.python.daemon.module": "asyncgroup.spark.preloading_daemon",
    # the default one runs a program for some files of a local disk: 100 ms for each batch and state store
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

MAX_CORES: Final = 4
"""Cores that the local Spark uses at most."""


async def start_spark(stack: AsyncExitStack) -> asyncio.Task[SparkSession]:
    """Start Spark in the background; `stack` stops it. Raises DemoFailed if Spark or Java is not installed."""
    from asyncgroup.spark import local_session, require_spark

    try:
        await asyncio.to_thread(require_spark)
    except AsyncGroupError as error:
        raise DemoFailed(
            f"{str(error).rstrip('.')}. Or run the demonstration without Spark: asyncgroup demo --no-spark"
        ) from error
    cores = min(MAX_CORES, os.cpu_count() or 1)
    starting = asyncio.create_task(
        asyncio.to_thread(local_session, "asyncgroup demo", cores=cores, config=CONFIG), name="start Spark"
    )

    async def stop() -> None:
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await asyncio.to_thread(starting.result().stop)

    stack.push_async_callback(lambda: wait_shielded(asyncio.create_task(stop(), name="stop Spark")))
    return starting


class Queries:
    """Runs the pipeline of `asyncgroup.spark.examples.flights` twice on a target, and reads its results.

    The second run continues after the first one, with a heartbeat as the only new record, which moves the watermark past
    the year's last hours, so that Spark emits them. If the heartbeat were produced together with the flights, Spark could
    read it in an earlier batch than flights of other partitions, and drop those flights as too late.
    """

    def __init__(self, spark: SparkSession, target: DemoTarget, output: Path, flights: int) -> None:
        from asyncgroup.spark.examples.flights.pipeline import Pipeline

        self.progress: Sequence[QueryProgress] = ()
        self.total = flights
        self._target = target
        self._output = output
        self._pipeline = Pipeline(
            bootstrap_servers=target.bootstrap_servers,
            properties=dict(target.properties),
            topic=target.topic,
            streaks_topic=target.streaks_topic,
            output=output.absolute().as_uri(),
            group_id=target.query_group_id,
            rows_per_trigger=-(-flights // BATCHES) + PARTITIONS,  # Spark rounds each partition's share down
            tasks=spark.sparkContext.defaultParallelism,
        )
        self._spark = spark
        self._session: SparkSession | None = None

    @property
    def plot(self) -> Path:
        """The file to which `draw` writes the plot."""
        return self._output / "delay_by_hour.svg"

    async def catch_up(self) -> None:
        """Run both queries until they have read the whole topic. Raises DemoFailed."""
        from asyncgroup.spark.examples.flights.pipeline import is_worker_timeout

        for pause in PAUSES:
            try:
                await self._run_queries()
            except DemoFailed as failed:
                if not isinstance(failed.__cause__, Exception) or not is_worker_timeout(failed.__cause__):
                    raise
                await asyncio.sleep(pause)
            else:
                return
        await self._run_queries()

    async def _run_queries(self) -> None:
        session = await self._own_session()
        starting = asyncio.create_task(asyncio.to_thread(self._pipeline.start, session), name="start queries")
        queries: list[StreamingQuery] = []
        try:
            queries = await wait_shielded(starting)
            await self._watch(queries)
        finally:
            if not queries and not starting.cancelled() and starting.exception() is None:
                queries = starting.result()
            await wait_shielded(asyncio.create_task(asyncio.to_thread(_stop, queries), name="stop queries"))

    async def _own_session(self) -> SparkSession:
        if self._session is None:
            self._session = await asyncio.to_thread(self._pipeline.session, self._spark)
        return self._session

    async def _watch(self, queries: Sequence[StreamingQuery]) -> None:
        while True:
            active, self.progress = await asyncio.to_thread(_look, queries)
            if not active:
                break
            await asyncio.sleep(POLL_INTERVAL)
        for query in queries:
            if (error := await asyncio.to_thread(query.exception)) is not None:
                raise DemoFailed(f"the query {query.name!r} failed: {_first_words(error)}") from error

    async def advance_watermark(self, last: int) -> None:
        """Produce a heartbeat with an event time long after `last` (minutes since 1970)."""
        from asyncgroup.spark.examples.flights.events import heartbeat

        config = self._target.config(ProducerConfig)
        async with Producer(self._target.bootstrap_servers, config) as producer:
            await producer.send(self._target.topic, heartbeat(60 * (last + LATER)))

    async def read(self) -> PipelineFigures:
        """Return the results: hours from Parquet, streaks from their topic."""
        session = await self._own_session()
        return await asyncio.to_thread(self._read, session)

    def _read(self, session: SparkSession) -> PipelineFigures:
        return figures(self._pipeline.delays(session), self._pipeline.streaks(session))

    async def draw(self, names: dict[str, str]) -> None:
        """Write a plot of the delay by hour of the day; `names` are the carriers' names by code."""
        await asyncio.to_thread(self._draw, await self._own_session(), names)

    def _draw(self, session: SparkSession, names: dict[str, str]) -> None:
        from asyncgroup.spark.examples.flights.pipeline import hours_of_day
        from asyncgroup.spark.examples.flights.plot import delay_by_hour_svg

        rows = hours_of_day(self._pipeline.delays(session))
        self.plot.write_text(delay_by_hour_svg(rows, names), encoding="utf-8")


def figures(delays: DataFrame, streaks: DataFrame) -> PipelineFigures:
    """Collect the pipeline's results from Spark. Blocks."""
    hours = _minutes(delays, "start").select("carrier", "start", "flights", "departed", "delay_sum")
    return PipelineFigures(
        {
            HourKey(r.carrier, r.start): HourFigures(r.flights, r.departed, r.delay_sum or 0)
            for r in hours.collect()
        },
        sorted(StreakFigures(*row) for row in _minutes(streaks, "first", "last").collect()),
    )


def _look(queries: Sequence[StreamingQuery]) -> tuple[bool, list[QueryProgress]]:
    from asyncgroup.spark.examples.flights.pipeline import QueryProgress

    # before the progress, so that the last call returns the final progress
    active = any(query.isActive for query in queries)
    return active, [QueryProgress.of(query) for query in queries]


def _stop(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        query.stop()


def _minutes(df: DataFrame, *columns: str) -> DataFrame:
    """Convert timestamps to minutes since 1970, which do not depend on a time zone."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    return df.withColumns({name: (F.unix_seconds(F.col(name)) / 60).cast("long") for name in columns})


def _first_words(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
