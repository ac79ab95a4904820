"""A program that copies a topic by a query of its own, which a test may kill: `python -m tests.real.sink_driver`."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.real.spark_driver import say, start_session

__all__ = ["copy_topic"]


def copy_topic(settings: dict[str, Any]) -> None:
    """A query from a topic to another one, by its checkpoint; a record's key says where it was read."""
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
