# ruff: noqa: INP001  not a module: Spark executes this file when it reads the specification
"""The flights pipeline for Spark's declarative pipelines: Spark derives the dependencies and checkpoints of the flows.

Run it in a copy of this directory, with the flights in their topic (`asyncgroup demo --only-produce`):

    export JAVA_HOME=$(python -c 'from asyncgroup.java import require_java as java; print(java("run Spark").home)')
    SPARK_CONF_DIR=. spark-pipelines run --spec spark-pipeline.yml

This needs `pip install 'asyncgroup[pipelines]'`. The specification beside this file names the topics and the storage;
spark-defaults.conf has the settings that Spark reads only at start. A second run continues where the first has ended.
Functions here only declare what to compute: Spark refuses calls that would run or analyze a query.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812  the name that Spark's users know

from asyncgroup.spark.examples.flights.delays import delays_by_hour
from asyncgroup.spark.examples.flights.events import flights
from asyncgroup.spark.examples.flights.pipeline import NEW_YORK, streak_records
from asyncgroup.spark.examples.flights.streaks import delay_streaks

# Spark discovers the source by itself. Do not register it here: the client of pyspark 4.3 does not know the counters that
# a source registered through Connect reports while it is planned, and would exit with UNKNOWN_RESPONSE and code 1
spark = SparkSession.active()


def setting(name: str, default: str) -> str:
    """Return one of the specification's settings."""
    return spark.conf.get(f"flights.{name}", default) or default


KAFKA = {"kafka.bootstrap.servers": setting("bootstrap.servers", "127.0.0.1:9092")}
TOPIC = setting("topic", "flights")
STREAKS_TOPIC = setting("streaks.topic", "flights-streaks")


def departures() -> DataFrame:
    """Return the decoded flights of the topic.

    Not a view of the pipeline, because Spark cannot define a watermark on a view before all flows are declared.
    """
    records = spark.readStream.format("asyncgroup").options(**KAFKA)
    return flights(records.options(subscribe=TOPIC, startingOffsets="earliest").load())


@dp.table
def delays() -> DataFrame:
    """Mean delay by carrier and hour: a streaming table to which complete hours are appended."""
    return delays_by_hour(departures())


@dp.materialized_view
def delay_by_hour_of_day() -> DataFrame:
    """The data of the plot, computed from `delays` at each run."""
    local = F.convert_timezone(None, F.lit(NEW_YORK), F.col("start").cast("timestamp_ntz"))
    by_hour = spark.read.table("delays").groupBy(F.hour(local).alias("hour"))
    sums = by_hour.agg(F.sum("departed").alias("departed"), F.sum("delay_sum").alias("delay_sum"))
    return sums.withColumn("mean_delay", F.col("delay_sum") / F.col("departed"))


STREAKS = streak_records(delay_streaks(departures()))
"""Defined at module level, because transformWithState analyzes its input, which flow functions must not do."""

dp.create_sink("streaks", "asyncgroup", {**KAFKA, "topic": STREAKS_TOPIC})


@dp.append_flow(target="streaks")
def streaks_to_their_topic() -> DataFrame:
    """Write the delay streaks to their topic."""
    return STREAKS
