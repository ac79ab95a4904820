# ruff: noqa: INP001  no module: Spark runs it while it reads a specification
"""The same pipeline, declared: Spark finds out what depends on what, and where each flow goes on.

In a copy of this directory, with the flights in their topic (`asyncgroup demo --only-produce`):

    export JAVA_HOME=$(python -c 'from asyncgroup.java import require_java as java; print(java("run Spark").home)')
    SPARK_CONF_DIR=. spark-pipelines run --spec spark-pipeline.yml

needs `pip install 'asyncgroup[pipelines]'`. The specification beside this file names the topics and the storage,
spark-defaults.conf what Spark takes only when it starts. A second run goes on where the first has ended.
Functions here only say what is to be done: Spark refuses whatever would run a query, or analyse one.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812  the name that Spark's users know

from asyncgroup.spark.examples.flights.delays import delays_by_hour
from asyncgroup.spark.examples.flights.events import flights
from asyncgroup.spark.examples.flights.pipeline import NEW_YORK, streak_records
from asyncgroup.spark.examples.flights.streaks import delay_streaks

# Spark finds the source by itself. It must not be registered here: the run's client in pyspark 4.3 does not know the
# sums that a source registered by Connect counts in its planning, and would end with UNKNOWN_RESPONSE and 1
spark = SparkSession.active()


def setting(name: str, default: str) -> str:
    """One of the specification's own settings."""
    return spark.conf.get(f"flights.{name}", default) or default


KAFKA = {"kafka.bootstrap.servers": setting("bootstrap.servers", "127.0.0.1:9092")}
TOPIC = setting("topic", "flights")
STREAKS_TOPIC = setting("streaks.topic", "flights-streaks")


def departures() -> DataFrame:
    """The flights of the topic, decoded.

    No view of the pipeline, since Spark cannot give a watermark to what it does not know before all is declared.
    """
    records = spark.readStream.format("asyncgroup").options(**KAFKA)
    return flights(records.options(subscribe=TOPIC, startingOffsets="earliest").load())


@dp.table
def delays() -> DataFrame:
    """Mean delay by carrier and hour: a streaming table, which grows by the hours that are complete."""
    return delays_by_hour(departures())


@dp.materialized_view
def delay_by_hour_of_day() -> DataFrame:
    """What the plot draws, computed anew from `delays` at each run."""
    local = F.convert_timezone(None, F.lit(NEW_YORK), F.col("start").cast("timestamp_ntz"))
    by_hour = spark.read.table("delays").groupBy(F.hour(local).alias("hour"))
    sums = by_hour.agg(F.sum("departed").alias("departed"), F.sum("delay_sum").alias("delay_sum"))
    return sums.withColumn("mean_delay", F.col("delay_sum") / F.col("departed"))


STREAKS = streak_records(delay_streaks(departures()))
"""Out here, because transformWithState asks for its input's columns, which a function below must not."""

dp.create_sink("streaks", "asyncgroup", {**KAFKA, "topic": STREAKS_TOPIC})


@dp.append_flow(target="streaks")
def streaks_to_their_topic() -> DataFrame:
    """Delay streaks back into Kafka."""
    return STREAKS
