"""A program with a Spark of its own, which its Kafka jars need: writes a topic, reads it, streams it on.

Arguments: bootstrap servers, a directory for checkpoints, how often to stream, the jars. Prints what it has seen as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from asyncgroup.spark import local_session

ROWS = 100


def main(servers: str, scratch: str, times: str, *jars: str) -> None:
    """Batch writes, each followed by a run of an availableNow stream on one checkpoint; a batch read."""
    settings = {
        "spark.jars": ",".join(jars),
        # a program of a few seconds is over before the better compilers have paid
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dderby.system.home={scratch}",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
    }
    spark = local_session("interop", config=settings)
    kafka = {"kafka.bootstrap.servers": servers}

    def write(first: int) -> None:
        rows = spark.range(first, first + ROWS).selectExpr("cast(id as string) key", "concat('v', id) value")
        rows.write.format("kafka").options(**kafka).option("topic", "written").save()

    def stream() -> None:
        rows = (
            spark.readStream.format("kafka")
            .options(**kafka, subscribe="written", startingOffsets="earliest")
            .load()
        )
        writing = rows.select("key", "value").writeStream.format("kafka").options(**kafka, topic="streamed")
        query = (
            writing.option("checkpointLocation", str(Path(scratch) / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(100)

    for run in range(int(times)):
        write(run * ROWS)
        stream()
    reading = spark.read.format("kafka").options(
        **kafka, assign='{"written":[0,1]}', startingOffsets='{"written":{"0":5,"1":-2}}'
    )
    rows = (
        reading.load()
        .selectExpr("cast(key as string)", "cast(value as string)", "partition", "offset")
        .collect()
    )
    print(json.dumps(sorted(map(tuple, rows))))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
