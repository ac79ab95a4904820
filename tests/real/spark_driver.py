"""Programs that run a Spark of their own, in a process that a test can kill: `python -m tests.real.spark_driver`.

A program gets its settings as JSON, and prints a line for each step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Driver", "overwriting", "say", "start_session", "two_executors"]

ROOT: Final = Path(__file__).parents[2]
LINE_LIMIT: Final = 240.0
"""Seconds to wait for a line; a program may have to start Spark first."""


# -- the programs --------------------------------------------------------------------------------------------


def overwriting(settings: dict[str, Any]) -> None:
    """Run a query over all available records; each batch overwrites what an earlier attempt of it has written.

    `hold` is the number of a batch after whose rows the program blocks until it is killed: they are written, but the
    batch is not committed.
    """
    spark = start_session()

    def store(df: DataFrame, batch_id: int) -> None:
        df.write.mode("overwrite").parquet(f"{settings['target']}/batch_id={batch_id}")
        say(f"batch {batch_id}")
        if batch_id == settings["hold"]:
            say(f"holding {batch_id}")
            sys.stdin.read()

    reading = spark.readStream.format("asyncgroup").option("kafka.bootstrap.servers", settings["servers"])
    writing = reading.options(**settings["options"]).load().writeStream.foreachBatch(store)
    query = writing.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    say("done")
    spark.stop()


def two_executors(settings: dict[str, Any]) -> None:
    """Copy a topic on a cluster of two executors, each in a Java process of its own, in three ways, and read the copies.

    The source feeds the sink, and the sink with transactions; the bridge passes batches of a group, which executors write.
    For each copy it prints the committed rows, their distinct values, and the number of executors whose Python workers wrote.
    """
    spark = start_session(**TWO)
    kafka = {"kafka.bootstrap.servers": settings["servers"]}
    for way, copy in settings["copies"].items():
        sink = {**kafka, "topic": copy} | ({} if way == "sink" else {"transactional.id.prefix": copy})
        if way == "bridge":
            asyncio.run(_copy_by_bridge(spark, settings, sink))
        else:
            reading = spark.readStream.format("asyncgroup").options(**kafka, **settings["options"]).load()
            writing = _marked(reading).writeStream.format("asyncgroup").options(**sink)
            checkpoint = f"{settings['checkpoint']}-{way}"
            writing = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            writing.start().awaitTermination()
        committed = {**kafka, "subscribe": copy, "kafka.isolation.level": "read_committed"}
        read = spark.read.format("asyncgroup").options(**committed).load()
        counted = read.selectExpr("count(*)", "count(distinct value)", "count(distinct key)").first()
        assert counted is not None
        say(f"{way}: rows {counted[0]}, values {counted[1]}, executors {counted[2]}")
    spark.stop()


async def _copy_by_bridge(spark: SparkSession, settings: dict[str, Any], sink: dict[str, str]) -> None:
    """Run a member of a group until it has passed all rows; the group has the name of the copy."""
    from asyncgroup import ConsumerConfig, ConsumerGroup
    from asyncgroup.spark import BatchId, ForeachBatch

    loop, complete, passed = asyncio.get_running_loop(), asyncio.Event(), 0

    def fn(df: DataFrame, batch_id: BatchId) -> None:
        nonlocal passed
        _marked(df).write.format("asyncgroup").options(**sink).mode("append").save()
        passed += sum(part.end - part.start for part in batch_id.ranges)
        if passed == settings["rows"]:
            loop.call_soon_threadsafe(complete.set)

    config = ConsumerConfig(auto_offset_reset="earliest")
    bridge = ForeachBatch(spark, fn, max_rows=int(settings["options"]["maxOffsetsPerTrigger"]))
    async with ConsumerGroup(settings["servers"], sink["topic"], config) as group:
        running = asyncio.create_task(group.run(settings["options"]["subscribe"], bridge))
        waiting = asyncio.create_task(complete.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await group.aclose()
        await running


TWO: Final = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # less CPU time at the start
    # start no task before both executors have registered
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
"""A cluster of a master and two workers on this machine, each with an executor of one core."""


def _marked(rows: DataFrame) -> DataFrame:
    """Return the values, each with its executor as key."""
    return rows.select("value").mapInArrow(_with_parent, "key string, value binary")


def _with_parent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the process id of this worker's parent as key; each executor has one such parent process."""
    import pyarrow as pa

    for batch in batches:
        keys = pa.repeat(str(os.getppid()), batch.num_rows)
        yield pa.RecordBatch.from_arrays([keys, batch.column(0)], names=["key", "value"])


def say(line: str) -> None:
    """Print a line for the test."""
    print(line, flush=True)


def start_session(**config: str) -> SparkSession:
    """Start Spark, and print the process id of its Java, so that the test can kill it, too."""
    from asyncgroup.spark import local_session, register

    spark = local_session("asyncgroup tests", config=config)
    register(spark)
    gateway: Any = spark.sparkContext._gateway
    say(f"java {gateway.proc.pid}")
    return spark


# -- the test's side -----------------------------------------------------------------------------------------


class Driver:
    """A process with one of the programs; it and its Java are killed at the end of the context if they still run.

    Its temporary directory, in which a killed program leaves files, is removed with the context.
    """

    def __init__(
        self,
        program: Callable[[dict[str, Any]], None],
        settings: dict[str, Any],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._program = (program.__module__, program.__name__)
        self._settings = settings
        # not in pytest's directory: the path of a Unix socket can have 107 characters
        self._scratch = tempfile.TemporaryDirectory(prefix="driver-", ignore_cleanup_errors=True)
        self._environ = {**os.environ, "TMPDIR": self._scratch.name, **(environ or {})}
        self._pids: list[int] = []  # of Python and Java

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", *self._program, json.dumps(self._settings))
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=self._environ, stdin=pipe, stdout=pipe
        )
        self._pids.append(self._process.pid)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.kill()
        await self._process.wait()
        self._scratch.cleanup()

    async def line(self) -> str:
        """Return the next line that the program prints; AssertionError if it has ended."""
        assert self._process.stdout is not None
        while True:
            async with asyncio.timeout(LINE_LIMIT):
                line = (await self._process.stdout.readline()).decode().rstrip("\n")
            assert line, "the driver has ended"
            if not line.startswith("java "):
                return line
            self._pids.append(int(line.removeprefix("java ")))

    @property
    def java(self) -> int:
        """The process id of Java."""
        return self._pids[1]

    def kill(self) -> None:
        """Kill Python and Java by SIGKILL."""
        while self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids.pop(), signal.SIGKILL)


if __name__ == "__main__":
    {program.__name__: program for program in (overwriting, two_executors)}[sys.argv[1]](
        json.loads(sys.argv[2])
    )
