"""asyncgroup's Spark source, bridge and sink, compared with Spark's own Kafka source and sink and with aiokafka."""

from benchmarks.spark.run import main

__all__ = ["main"]
