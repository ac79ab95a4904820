"""Run the guide's examples of the source and the sinks, with another address and directory."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.model import Batch, Record
from asyncgroup.spark import BatchId, OffsetRange, register
from asyncgroup.spark.bridge.frames import create_frame
from asyncgroup.spark.source.options.values import OWN_OPTIONS, SINK_OPTIONS, SPARK_OPTIONS
from asyncgroup.testing import KafkaServer
from tests.guide.pages import page, snippet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_reference_lists_all_options() -> None:
    """The table has exactly the existing options."""
    text = page("spark-reference").split("| option of `format(")[1].split("\n\n")[0]
    named = {name for row in text.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    without_effect = {"groupIdPrefix", "partition.metadata.cache.ttl.ms"}
    sink = {*SINK_OPTIONS, *("kafka.max.block.ms", "kafka.chunking", "kafka.max.chunk.size")}
    both = {"kafka.bootstrap.servers", "kafka.default.api.timeout.ms"}
    assert named - sink - both == {*SPARK_OPTIONS, *OWN_OPTIONS} - without_effect
    assert named > sink | both


@pytest.mark.timeout(600)
def test_the_sinks_store_a_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    block = snippet("spark-bridge", "OffsetsInSink(connect").replace(
        '"orders.db"', repr(str(tmp_path / "orders.db"))
    )
    names: dict[str, Any] = {}
    exec(block, names)

    def database(*statements: str) -> list[tuple[object, ...]]:
        """Execute the statements in a transaction; return the rows of the last one."""
        with contextlib.closing(names["connect"]()) as connection, connection:
            *_, rows = (connection.execute(statement).fetchall() for statement in statements)
        found: list[tuple[object, ...]] = rows
        return found

    database(
        'CREATE TABLE orders (topic, "partition", "offset", amount)',
        'CREATE UNIQUE INDEX places ON orders (topic, "partition", "offset")',
    )
    batch = Batch("t", 0, [Record("t", 0, offset, 0, 0, None, b"%d" % offset) for offset in range(10)])
    frame = create_frame(spark, [batch.to_arrow()])
    batch_id = BatchId(0, [OffsetRange("t", 0, 0, 10)])
    for sink in ("merged", "merged", "exact", "exact"):
        if sink == "exact" and database("SELECT count(*) FROM kafka_offsets") == [(0,)]:
            database("DELETE FROM orders")
        names[sink](frame, batch_id)
        rows = database('SELECT "offset", amount FROM orders ORDER BY "offset"')
        assert rows == [(offset, str(offset)) for offset in range(10)]
    stored = database('SELECT consumer, topic, "partition", next_offset FROM kafka_offsets')
    assert stored == [("orders-to-db", "t", 0, 10)]


@pytest.mark.timeout(600)
async def test_the_queue_stores_numbers_and_rejects_the_rest(
    spark: SparkSession, kafka_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    kafka_cluster.create_topic("orders", 1)
    kafka_cluster.create_topic("orders-amounts-DLQ", 1)
    async with Producer(kafka_cluster.bootstrap_servers) as producer:
        for value in (b"1", b"two", b"3"):
            await producer.send("orders", value)
    block = snippet("spark-bridge", "FailedRows(parsed").replace("asyncio.run(main())", "")
    block = block.replace("127.0.0.1:9092", kafka_cluster.bootstrap_servers)
    names: dict[str, Any] = {}
    exec(block.replace('"orders.db"', repr(str(tmp_path / "orders.db"))), names)
    with contextlib.closing(sqlite3.connect(tmp_path / "orders.db")) as database:
        database.execute('CREATE TABLE amounts (topic, "partition", "offset", amount)')
        database.execute('CREATE UNIQUE INDEX places ON amounts (topic, "partition", "offset")')
        main = asyncio.create_task(names["main"]())
        async with asyncio.timeout(300):
            while not kafka_cluster.records("orders-amounts-DLQ"):
                await asyncio.sleep(0.05)
        main.cancel()
        await asyncio.wait({main})
        assert database.execute('SELECT "offset", amount FROM amounts ORDER BY "offset"').fetchall() == [
            (0, 1),
            (2, 3),
        ]
    assert [record.value for record in kafka_cluster.records("orders-amounts-DLQ")] == [b"two"]


@pytest.mark.timeout(600)
def test_the_streaming_example_runs(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> None:
    block = snippet("spark-source-and-sink", 'readStream.format("asyncgroup")')
    for topic in ("greetings", "shouted"):
        kafka_server.create_topic(topic, 2)
    register(spark)
    rows = spark.range(10).selectExpr("concat('hello ', id) as value").write.format("asyncgroup")
    rows.options(**{"kafka.bootstrap.servers": kafka_server.bootstrap_servers, "topic": "greetings"})
    rows.mode("append").save()
    block = block.replace("127.0.0.1:9092", kafka_server.bootstrap_servers)
    block = block.replace("checkpoints/", f"{tmp_path}/")
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["spark"] is spark
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    values = sorted(record.value or b"" for record in kafka_server.records("shouted"))
    assert values == [b"HELLO %d" % number for number in range(10)]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_transactional_example_runs(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    kafka_server.create_topic("shouted", 2)
    register(spark)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("HELLO\nWORLD")
    names: dict[str, Any] = {
        "shouted": spark.readStream.text(str(tmp_path / "in")),
        "kafka": {"kafka.bootstrap.servers": kafka_server.bootstrap_servers},
    }
    block = snippet("spark-source-and-sink", "transactional.id.prefix")
    exec(block.replace("checkpoints/", f"{tmp_path}/"), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert sorted(record.value or b"" for record in kafka_server.records("shouted")) == [b"HELLO", b"WORLD"]
    states = kafka_server.call(lambda cluster: {each.state for each in cluster.transactions.values()})
    assert states == {"CompleteCommit"}
