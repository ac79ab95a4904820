"""A program whose query copies a topic, in a process that a test can kill: `python -m tests.real.sink_driver`."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.real.spark_driver import say, start_session

__all__ = ["copy_topic"]


def copy_topic(settings: dict[str, Any]) -> None:
    """Copy a topic to another one with a checkpoint; each record's key is the partition and offset it was read from."""
    spark = start_session()
    kafka = {"kafka.bootstrap.servers": settings["servers"]}
    reading = spark.readStream.format("asyncgroup").options(**kafka, **settings["options"]).load()
    placed = reading.selectExpr("concat(partition, '-', offset) AS key", "value")
    writing = placed.writeStream.format("asyncgroup").options(**kafka, topic=settings["copy"])
    checkpoint = settings["checkpoint"]
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    say("started")
    query.awaitTermination()
    say("done")
    spark.stop()


if __name__ == "__main__":
    assert sys.argv[1] == "copy_topic"
    copy_topic(json.loads(sys.argv[2]))
