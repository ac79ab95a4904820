"""The sink format("asyncgroup") with a real Spark and a broker in a thread."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F

from asyncgroup.spark import register
from asyncgroup.testing import KafkaServer
from tests.spark.sink.test_transactional_writer import visible

pytestmark = pytest.mark.timeout(600)  # the first jobs of a Spark on a busy machine


@pytest.fixture(scope="module")
def spark_with_sink(spark: SparkSession) -> SparkSession:
    """The session, with the format registered."""
    register(spark)
    return spark


def save(df: DataFrame, server: KafkaServer, mode: str = "append", **options: str) -> None:
    options = {"kafka.bootstrap.servers": server.bootstrap_servers, **options}
    df.write.format("asyncgroup").options(**options).mode(mode).save()


def test_rows_become_records(spark_with_sink: SparkSession, kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("numbers", 3)
    kafka_server.create_topic("others", 1)
    df = spark_with_sink.range(0, 5_000, numPartitions=3).select(
        F.col("id").cast("string").alias("value"),
        F.when(F.col("id") % 2 == 0, F.lit("k").cast("binary")).alias("key"),
        F.when(F.col("id") % 2 == 1, F.lit(1)).cast("int").alias("partition"),
        F.lit(b"\x00h").alias("raw"),
        F.when(F.col("id") < 10, F.lit("others")).otherwise(F.lit("numbers")).alias("topic"),
    )
    header = F.array(F.struct(F.lit("h").alias("key"), F.col("raw").alias("value")))
    df = df.withColumn("headers", header).withColumn("timestamp", F.lit("what you will")).drop("raw")
    save(df.where("topic = 'numbers'"), kafka_server)
    found = kafka_server.records("numbers")
    assert sorted(int(record.value or b"") for record in found) == list(range(10, 5_000))
    assert {record.key for record in found if int(record.value or b"") % 2 == 0} == {b"k"}
    assert {record.partition for record in found if int(record.value or b"") % 2 == 1} == {1}
    assert {tuple(record.headers) for record in found} == {(("h", b"\x00h"),)}
    assert min(record.timestamp for record in found) > 1_700_000_000_000
    save(df.where("id < 10").drop("partition"), kafka_server, topic=" numbers ")
    assert not kafka_server.records("others")


def test_invalid_columns_and_options_are_reported(
    spark_with_sink: SparkSession, kafka_server: KafkaServer
) -> None:
    df = spark_with_sink.range(3)
    number, text = F.col("id").alias("value"), F.lit("x").alias("value")
    with pytest.raises(PySparkException, match="column 'value' has the type bigint"):
        save(df.select(number), kafka_server, topic="t")
    with pytest.raises(PySparkException, match="save mode='overwrite' is not allowed: append"):
        save(df.select(text), kafka_server, "overwrite", topic="t")
    with pytest.raises(PySparkException, match="a row's topic is null; the option topic"):
        save(df.select(text, F.lit(None).cast("string").alias("topic")), kafka_server)


@pytest.mark.full
def test_streams(spark_with_sink: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    kafka_server.create_topic("lines", 2)
    kafka_server.create_topic("counts", 1)
    lines = spark_with_sink.readStream.text(str(tmp_path / "in"))
    counts = lines.groupBy("value").count().select(F.to_json(F.struct("value", "count")).alias("value"))

    def run(frame: DataFrame, topic: str, mode: str) -> None:
        servers = {"kafka.bootstrap.servers": kafka_server.bootstrap_servers}
        query = frame.writeStream.format("asyncgroup").options(**servers, topic=topic).outputMode(mode)
        started = query.option("checkpointLocation", str(tmp_path / topic)).trigger(availableNow=True).start()
        try:
            assert started.awaitTermination(120)
        finally:
            started.stop()

    written: list[str] = []
    for batch in range(2):
        text = [f"{batch}-{number}" for number in range(50)]
        (tmp_path / "in" / f"{batch}.txt").write_text("\n".join(text))
        written += text
        run(lines, "lines", "append")
    run(counts, "counts", "complete")
    assert sorted((r.value or b"").decode() for r in kafka_server.records("lines")) == sorted(written)
    assert len(kafka_server.records("counts")) == 100
    with pytest.raises(StreamingQueryException, match="column 'value' has the type int"):
        run(lines.select(F.length("value").alias("value")), "wrong", "append")


@pytest.mark.full
def test_transactions(spark_with_sink: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Rows of a failed batch query stay invisible; those of a stream are visible once, also after a failed batch."""
    kafka_server.create_topic("out", 2)
    numbers = spark_with_sink.range(0, 300, numPartitions=3).select(F.col("id").cast("string").alias("value"))
    transactions = {"topic": "out", "transactional.id.prefix": "numbers"}
    save(numbers, kafka_server, **transactions)
    failing = numbers.select(F.expr("if(value = '250', raise_error('bad row'), value)").alias("value"))
    with pytest.raises(PySparkException, match="bad row"):
        save(failing, kafka_server, **transactions)
    assert visible(kafka_server) == list(range(300))

    def run(frame: DataFrame) -> None:
        options = {"kafka.bootstrap.servers": kafka_server.bootstrap_servers, **transactions}
        writing = frame.writeStream.format("asyncgroup").options(**options).trigger(availableNow=True)
        started = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert started.awaitTermination(120)
        finally:
            started.stop()

    (tmp_path / "in").mkdir()
    lines = spark_with_sink.readStream.text(str(tmp_path / "in"))
    (tmp_path / "in" / "0.txt").write_text("\n".join(map(str, range(300, 400))))
    run(lines)
    (tmp_path / "in" / "1.txt").write_text("\n".join(map(str, range(400, 500))))
    with pytest.raises(StreamingQueryException, match="bad row"):
        run(lines.select(F.expr("if(value = '450', raise_error('bad row'), value)").alias("value")))
    run(lines)
    assert visible(kafka_server) == list(range(500))


@pytest.mark.soak
def test_records_equal_those_of_sparks_own_sink(
    spark_with_kafka: SparkSession, spark_with_sink: SparkSession, kafka_server: KafkaServer
) -> None:
    """Both sinks write the same rows: keys go to the same partitions, and the same columns are refused."""
    df = spark_with_kafka.range(0, 300, numPartitions=2).select(
        F.when(F.col("id") % 5 > 0, F.concat(F.lit("schlüssel-"), F.col("id") % 50)).alias("key"),
        F.when(F.col("id") % 7 > 0, F.col("id").cast("string").cast("binary")).alias("value"),
        F.when(F.col("id") % 5 == 0, F.lit(2)).cast("int").alias("partition"),
        F.expr(
            "CASE WHEN id % 3 > 0 THEN array(struct('h' AS key, cast(cast(id AS string) AS binary) AS value)) END AS headers"
        ),
    )
    wrong = [
        (df.drop("value"), {"topic": "x"}),
        (df, {}),
        (df.withColumn("key", F.lit(1)), {"topic": "x"}),
        (df.withColumn("partition", F.lit("1")), {"topic": "x"}),
        (df.withColumn("topic", F.lit(1)), {}),
        (df.withColumn("headers", F.lit("h")), {"topic": "x"}),
        (df.withColumn("topic", F.lit(None).cast("string")), {}),
        (df, {"topic": "x", "kafka.key.serializer": "y"}),
    ]
    written = {}
    for source in ("kafka", "asyncgroup"):
        kafka_server.create_topic(f"of-{source}", 5)

        def save_by(frame: DataFrame, options: dict[str, str], source: str = source) -> None:
            servers = {"kafka.bootstrap.servers": kafka_server.bootstrap_servers}
            frame.write.format(source).options(**servers, **options).mode("append").save()

        save_by(df, {"topic": f"of-{source}"})
        records = kafka_server.records(f"of-{source}")
        written[source] = sorted(
            (r.partition, r.key or b"", r.value or b"", tuple(r.headers)) for r in records
        )
        for number, (frame, options) in enumerate(wrong):
            with pytest.raises((PySparkException, Py4JJavaError)):
                save_by(frame, options)
                pytest.fail(f"{source} takes number {number}")
    assert written["kafka"] == written["asyncgroup"]
    assert len(written["kafka"]) == 300
