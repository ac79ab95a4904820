"""QueueForeachBatch with a real Spark: failed rows as DataFrames and as rows, and cancelled jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark import FailedRows, QueueForeachBatch
from asyncgroup.workqueue import DeadLetter, WorkQueue
from tests.spark.bridge.test_real_spark import endless_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(1) as cluster:
        cluster.create_topic("numbers", 2)
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(100):
                value = b"x" if number % 10 == 7 else b"%d" % number
                await producer.enqueue("numbers", value, partition=number % 2)
        yield cluster


def queue_of(cluster: EmbeddedCluster) -> WorkQueue:
    return WorkQueue(
        cluster.bootstrap_servers,
        "lake",
        "numbers",
        initial_position="earliest",
        nack_backoff=0.1,
        dead_letter=DeadLetter(1),
    )


def as_frame(bad: Any) -> Any:
    return FailedRows(bad, reject="not a number")


def as_rows(bad: Any) -> Any:
    return FailedRows(bad.collect(), reject="not a number")


def as_selected_rows(bad: Any) -> Any:
    return FailedRows(
        bad.select("topic", "partition", "offset").toPandas().itertuples(index=False), reject="no"
    )


@pytest.mark.parametrize("failed", [as_frame, as_rows, as_selected_rows])
async def test_named_rows_are_dead_letters_and_the_rest_is_stored_once(
    spark: SparkSession, cluster: EmbeddedCluster, failed: Callable[[Any], Any]
) -> None:
    stored: list[int] = []
    threads: set[threading.Thread] = set()

    def store(df: Any, batch_id: int) -> FailedRows:
        threads.add(threading.current_thread())
        assert batch_id == len(stored) == 0
        parsed = df.selectExpr("*", "try_cast(cast(value AS string) AS int) AS number")
        stored.extend(row.number for row in parsed.where("number IS NOT NULL").select("number").collect())
        return failed(parsed.where("number IS NULL"))  # type: ignore[no-any-return]

    async with queue_of(cluster) as queue:
        run = asyncio.create_task(
            QueueForeachBatch(spark, store, max_rows=100, max_wait=5, durable=True).run(queue)
        )
        async with asyncio.timeout(60):
            while queue.statistics().counts.dead_lettered < 10:
                await asyncio.sleep(0.02)
        assert queue.statistics().counts.acked == 90
        await queue.aclose()
        await run
    assert sorted(stored) == [number for number in range(100) if number % 10 != 7]
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    assert [record.value for record in cluster.records("numbers-lake-DLQ")] == [b"x"] * 10
    assert {tp.partition: found.offset for tp, found in cluster.group("lake").offsets.items()} == {
        0: 50,
        1: 50,
    }


async def test_the_job_of_a_cancelled_run_is_cancelled(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    begun = threading.Event()

    def endless(_df: Any, _batch_id: int) -> None:
        begun.set()
        endless_job(spark)

    async with queue_of(cluster) as queue:
        foreach = QueueForeachBatch(spark, endless)
        run = asyncio.create_task(foreach.run(queue))
        await asyncio.to_thread(begun.wait, 60)
        run.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait({run})
        assert run.cancelled()
        assert foreach.statistics().interrupted == 1
        assert (queue.statistics().counts.acked, queue.statistics().counts.nacked) == (0, 0)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncgroup-foreach")]
