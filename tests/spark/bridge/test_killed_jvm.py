"""The JVM is killed during a batch: the run ends at once, with an error that says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, threading
from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark import ForeachBatch, Retry, SparkUnavailable, local_session

spark = local_session()
begun, calls = threading.Event(), []

def store(df, batch_id):
    calls.append(df.count())
    begun.set()
    spark.range(0, 10**11, 1, 10_000).selectExpr("id % 7 as x").write.format("noop").mode("overwrite").save()

async def main():
    async with EmbeddedCluster(1) as cluster:
        cluster.create_topic("numbers", 1)
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send("numbers", b"1")
        config = ConsumerConfig(auto_offset_reset="earliest")
        async with ConsumerGroup(cluster.bootstrap_servers, "g", config) as group:
            run = asyncio.create_task(group.run("numbers", ForeachBatch(spark, store, on_error=Retry(times=50))))
            await asyncio.to_thread(begun.wait, 120)
            os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
            killed = asyncio.get_running_loop().time()
            try:
                await run
            except SparkUnavailable as error:
                print("SparkUnavailable:", str(error).splitlines()[0])
            print("at once:", asyncio.get_running_loop().time() - killed < 15)
    print("calls:", calls)

asyncio.run(main())
"""


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_run_ends_at_once_with_spark_unavailable() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=380, check=False
    )
    output, at_once, calls = run.stdout.splitlines()
    assert output.startswith("SparkUnavailable: Spark's Java process has ended: "), run.stderr
    assert (at_once, calls) == ("at once: True", "calls: [1]")
