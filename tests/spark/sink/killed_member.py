"""A program that stores batches as Parquet until it is killed: `python -m tests.spark.sink.killed_member SERVERS PATH`.

Prints `stored` after each batch.
"""

from __future__ import annotations

import asyncio
import sys

from pyspark.sql import DataFrame

from asyncgroup import ConsumerConfig, ConsumerGroup
from asyncgroup.spark import BatchId, ForeachBatch, ParquetByRange, local_session


async def main(servers: str, path: str) -> None:
    spark = local_session("member")
    store = ParquetByRange(spark, path, compact_after=3)

    def write(df: DataFrame, batch_id: BatchId) -> None:
        store(df, batch_id)
        print("stored", flush=True)

    config = ConsumerConfig(auto_offset_reset="earliest", session_timeout=6.0, heartbeat_interval=1.0)
    async with ConsumerGroup(servers, "killed", config) as group:
        await group.run("numbers", ForeachBatch(spark, write, max_rows=500, max_wait=0.05))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
