"""The bridge with Spark Connect, which has session tags in place of the SparkContext's job tags."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from asyncgroup.errors import MemberLost
from asyncgroup.spark import BatchId, ForeachBatch
from asyncgroup.spark.requirements import SparkUnavailable
from tests.spark.bridge.fakes import FakeClaim, FakeSession


class ConnectSession:
    """A fake with what the bridge uses of `pyspark.sql.connect.session.SparkSession`."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.interrupted = threading.Event()
        self.is_stopped = False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not supported in Spark Connect")

    def addTag(self, tag: str) -> None:
        self.tags.add(tag)

    def removeTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def interruptTag(self, tag: str) -> None:
        assert self.tags == {tag}
        self.interrupted.set()

    def createDataFrame(self, table: Any, schema: Any) -> Any:
        assert table.column_names == schema.names
        return table


ConnectSession.__module__ = "pyspark.sql.connect.session"


async def test_batches_are_delivered_and_committed_under_a_tag() -> None:
    spark, seen = ConnectSession(), list[tuple[int, int]]()

    def store(df: Any, batch_id: BatchId) -> None:
        seen.append((df.num_rows, len(spark.tags)))
        if len(seen) == 2:
            loop.call_soon_threadsafe(done.set)

    loop, done = asyncio.get_running_loop(), asyncio.Event()
    claim = FakeClaim(0)
    claim.feed(0, 10)
    session = FakeSession(claim)
    handler = ForeachBatch(spark, store, max_rows=5)  # type: ignore[arg-type]
    task = asyncio.create_task(handler.consume_claim(session, claim))  # type: ignore[arg-type]
    await done.wait()
    while len(session.commits) < 2:
        await asyncio.sleep(0)
    session.end(MemberLost("lost"))
    await task
    assert (seen, spark.tags) == ([(5, 1), (5, 1)], set())


async def test_operations_of_an_interrupted_batch_are_interrupted_by_their_tag() -> None:
    spark, begun = ConnectSession(), threading.Event()

    def endless(_df: Any, _batch_id: BatchId) -> None:
        begun.set()
        assert spark.interrupted.wait(60)
        raise RuntimeError("OPERATION_CANCELED")

    claim = FakeClaim(0)
    claim.feed(0, 10)
    session = FakeSession(claim)
    task = asyncio.create_task(ForeachBatch(spark, endless).consume_claim(session, claim))  # type: ignore[arg-type]
    await asyncio.to_thread(begun.wait, 30)
    session.end(MemberLost("lost"))
    await task
    assert session.marks == {}


async def test_a_stopped_session_raises_spark_unavailable() -> None:
    spark = ConnectSession()
    spark.is_stopped = True
    claim = FakeClaim(0)
    claim.feed(0, 10)
    with pytest.raises(SparkUnavailable, match="was stopped"):
        await ForeachBatch(spark, lambda _df, _id: None).consume_claim(FakeSession(claim), claim)  # type: ignore[arg-type]


PROGRAM = """
import asyncio, threading
from pyspark import SparkContext
from pyspark.sql import SparkSession, functions as F
from asyncgroup.errors import MemberLost
from asyncgroup.spark import ForeachBatch, configure
from tests.spark.bridge.fakes import FakeClaim, FakeSession

spark = configure(SparkSession.builder.remote("local[2]")).getOrCreate()
executable = F.udf(lambda _: __import__("sys").executable, "string")
print(spark.range(1).select(executable("id")).first()[0])
print(SparkContext._active_spark_context.getConf().get("spark.python.unix.domain.socket.enabled"))

async def deliver():
    begun, raised = threading.Event(), []
    def endless(df, batch_id):
        print(df.count(), df.where("headers is null").count())
        begun.set()
        try:
            rows = spark.range(0, 10**11, 1, 10_000).selectExpr("id % 7 as x")
            rows.write.format("noop").mode("overwrite").save()
        except Exception as error:
            raised.append(str(error))
            raise
    claim = FakeClaim(0)
    session = FakeSession(claim)
    claim.feed(0, 10)
    handler = ForeachBatch(spark, endless, include_headers=True)
    task = asyncio.create_task(handler.consume_claim(session, claim))
    await asyncio.to_thread(begun.wait, 120)
    session.end(MemberLost("lost"))
    await task
    print("OPERATION_CANCELED" in raised[0], session.marks)

asyncio.run(deliver())
spark.stop()
"""


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_a_connect_server_of_this_process() -> None:
    """`remote("local[2]")`, as set up by `configure`, on a free port."""
    pytest.importorskip("grpc_status", reason="Spark Connect needs pyspark[connect]")
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=380,
        env=environment | {"SPARK_TESTING": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [sys.executable, "true", "10 10", "True {}"]
    assert "Failed to set" not in run.stderr
