"""Spark fed by asyncgroup, as a source and by the bridge, beside Spark's own Kafka source and aiokafka's consumer."""

from benchmarks.spark.run import main

__all__ = ["main"]
