"""A program that runs a bridge in a process of its own, which a test may kill: `python -m tests.real.bridge_driver`."""

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
"""Rows of a batch."""


def connect_database(target: str) -> sqlite3.Connection:
    """The database, with the table of rows, which has no key: a row that comes twice is there twice."""
    connection = sqlite3.connect(target, timeout=60.0)
    connection.execute('CREATE TABLE IF NOT EXISTS numbers ("partition", "offset")')
    return connection


def run_bridge(settings: dict[str, Any]) -> None:
    """A bridge into a database, rows and offsets in one transaction, until that has `rows` rows.

    `hold` says at which call of the function it stops for ever, and where: `before` anything was stored or `after` all
    was, which Kafka does not know then.
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
        for place in ("before", "after"):
            if settings["hold"] == [calls, place]:
                say(f"holding {batch_id}")
                sys.stdin.read()
            if place == "before":
                store(df, batch_id)

    asyncio.run(_bridge(settings, ForeachBatch(spark, fn, max_rows=ROWS, start_from=store.start_offsets)))
    say("done")
    spark.stop()


async def _bridge(settings: dict[str, Any], handler: ForeachBatch) -> None:
    # dead members are given up soon
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
