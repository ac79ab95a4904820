"""The bridge into Spark: claims in, DataFrames out, offsets committed after the work is done.

    from asyncgroup import ConsumerConfig, ConsumerGroup
    from asyncgroup.spark import ForeachBatch, local_session

    spark = local_session()

    def store(df, batch_id):
        for part in batch_id.ranges:                       # the same start is written to the same place
            part.rows(df).write.mode("overwrite").parquet(f"/data/{part.topic}/{part.partition}/{part.start}")

    async with ConsumerGroup("localhost:9092", "store", ConsumerConfig(auto_offset_reset="earliest")) as group:
        await group.run("orders", ForeachBatch(spark, store))

Needs the extra `spark` (pyspark, pyarrow) and Java 17 or later; nothing of it is imported before it is used.
"""

from asyncgroup.spark.bridge.batch_id import BatchId
from asyncgroup.spark.bridge.foreach_batch import ForeachBatch
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.session import SparkUnavailable, configure, local_session, require_spark

__all__ = [
    "BatchId",
    "ForeachBatch",
    "OffsetRange",
    "SparkUnavailable",
    "configure",
    "local_session",
    "require_spark",
]
