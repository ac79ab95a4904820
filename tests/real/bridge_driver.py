"""A program that runs a bridge to a database, in a process that a test can kill: `python -m tests.real.bridge_driver`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from typing import TYPE_CHECKING, Any, Final

from asyncgroup import ConsumerConfig, ConsumerGroup
from asyncgroup.spark import BatchId, ForeachBatch, OffsetsInSink
from tests.real.spark_driver import say, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROWS", "connect_database", "run_bridge"]

ROWS: Final = 5_000
"""The maximum of rows of a batch."""


def connect_database(target: str) -> sqlite3.Connection:
    """Open the database, and create the table of rows; it has no key, so that a row stored twice is there twice."""
    connection = sqlite3.connect(target, timeout=60.0)
    connection.execute('CREATE TABLE IF NOT EXISTS numbers ("partition", "offset")')
    return connection


def run_bridge(settings: dict[str, Any]) -> None:
    """Run a bridge that stores rows and offsets in one transaction, until the database has `rows` rows.

    `hold` is the number of a batch and a position, `before` or `after` its rows are stored, at which the program blocks
    until it is killed; after the second Kafka does not know that the rows are stored.
    """
    spark = start_session()
    store = OffsetsInSink(
        lambda: connect_database(settings["target"]),
        "numbers",
        name="bridge",
        transform=lambda df: df.select("partition", "offset"),
    )
    store.create_offsets_table()
    calls = 0

    def fn(df: DataFrame, batch_id: BatchId) -> None:
        nonlocal calls
        calls += 1
        say(f"batch {batch_id}")
        for position in ("before", "after"):
            if settings["hold"] == [calls, position]:
                say(f"holding {batch_id}")
                sys.stdin.read()
            if position == "before":
                store(df, batch_id)

    asyncio.run(_bridge(settings, ForeachBatch(spark, fn, max_rows=ROWS, start_from=store.start_offsets)))
    say("done")
    spark.stop()


async def _bridge(settings: dict[str, Any], handler: ForeachBatch) -> None:
    # a short session timeout, so that killed members expire soon
    config = ConsumerConfig(auto_offset_reset="earliest", session_timeout=6.0, heartbeat_interval=1.0)
    async with ConsumerGroup(settings["servers"], settings["topic"], config) as group:
        run = asyncio.create_task(group.run(settings["topic"], handler))
        while not run.done() and await asyncio.to_thread(_rows, settings["target"]) < settings["rows"]:
            await asyncio.wait({run}, timeout=0.2)
        await group.aclose()
        await run


def _rows(target: str) -> int:
    connection = connect_database(target)
    try:
        return int(connection.execute("SELECT count(*) FROM numbers").fetchone()[0])
    finally:
        connection.close()


if __name__ == "__main__":
    assert sys.argv[1] == "run_bridge"
    run_bridge(json.loads(sys.argv[2]))
