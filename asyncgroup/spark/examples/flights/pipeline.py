"""The pipeline as a whole: a topic in, two queries beside each other, Parquet and another topic out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from asyncgroup.spark.examples.flights.delays import delays_by_hour
from asyncgroup.spark.examples.flights.events import flights
from asyncgroup.spark.examples.flights.plot import HourOfDay
from asyncgroup.spark.examples.flights.streaks import delay_streaks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["NEW_YORK", "Pipeline", "QueryProgress", "hours_of_day", "is_worker_timeout", "streak_records"]

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # transformWithState keeps its state there and nowhere else
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}

STREAK_MESSAGE: Final = "carrier string, first timestamp, last timestamp, flights int, mean_delay double"

NEW_YORK: Final = "America/New_York"
"""The timezone of all departures."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What it reads and where its results go; the same value with the same `output` goes on where it was.

    Spark writes the offsets of a batch down before it begins and the batch's end after it is written. A pipeline that
    was killed does the same batch again: the Parquet files count once, since Spark lists those of finished batches
    only; streaks may be in their topic twice, and `streaks` reads them once.
    """

    bootstrap_servers: str
    topic: str = "flights"
    streaks_topic: str = "flights-streaks"
    output: str
    """A directory, as a path or URI that driver and executors reach: holds `delays` and `checkpoints`."""
    rows_per_trigger: int = 80_000
    tasks: int | None = None
    """Tasks that read a batch, at most; None: one for each partition. As many as there are cores is best."""
    group_id: str = "flights-pipeline"
    """Each query commits what it has finished to `<group_id>-<query>`, where tools see how far it is."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What it connects with (TLS, SASL), by Kafka's names."""
    source: str = "asyncgroup"
    sink: str = "asyncgroup"
    """Formats; Spark's own `kafka` takes and gives the same."""

    def session(self, spark: SparkSession) -> SparkSession:
        """A session on the same Spark with the settings that the pipeline needs; the other's stay as they are."""
        session = spark.newSession()
        for key, value in SETTINGS.items():
            session.conf.set(key, value)
        if "asyncgroup" in (self.source, self.sink):
            from asyncgroup.spark.registration import register

            register(session)
        return session

    def start(self, session: SparkSession) -> list[StreamingQuery]:
        """Start both queries: they go on to the end that the topic has now, and end there."""
        # Spark looks a sink up in the session of the calling thread, which a new thread has not; this call makes it so
        session.createDataFrame([], "nothing int")
        delays = self._start_delays(session)
        try:
            return [delays, self._start_streaks(session)]
        except BaseException:
            delays.stop()
            raise

    def delays(self, session: SparkSession) -> DataFrame:
        """What `delays_by_hour` has written."""
        return session.read.parquet(f"{self.output}/delays")

    def streaks(self, session: SparkSession) -> DataFrame:
        """What `delay_streaks` has produced to its topic, each streak once."""
        records = session.read.format(self.source).options(**self._kafka, subscribe=self.streaks_topic).load()
        message = F.from_json(F.col("value").cast("string"), STREAK_MESSAGE, {"timeZone": "UTC"})
        return records.select(message.alias("streak")).select("streak.*").distinct()

    @property
    def _kafka(self) -> dict[str, str]:
        given = {f"kafka.{name}": value for name, value in self.properties.items()}
        return given | {"kafka.bootstrap.servers": self.bootstrap_servers}

    def _flights(self, session: SparkSession, query: str) -> DataFrame:
        options = self._kafka | {
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.rows_per_trigger),
        }
        if self.source == "asyncgroup":
            options["kafka.group.id"] = f"{self.group_id}-{query}"
            if self.tasks is not None:
                options["tasks"] = str(self.tasks)
        return flights(session.readStream.format(self.source).options(**options).load())

    def _start_delays(self, session: SparkSession) -> StreamingQuery:
        rows = delays_by_hour(self._flights(session, "delays"))
        writing = (
            rows.writeStream.queryName("delays").format("parquet").option("path", f"{self.output}/delays")
        )
        return writing.options(**self._checkpoint("delays")).trigger(availableNow=True).start()

    def _start_streaks(self, session: SparkSession) -> StreamingQuery:
        records = streak_records(delay_streaks(self._flights(session, "streaks")))
        writing = records.writeStream.queryName("streaks").format(self.sink)
        writing = writing.options(**self._kafka, topic=self.streaks_topic)
        return writing.options(**self._checkpoint("streaks")).trigger(availableNow=True).start()

    def _checkpoint(self, query: str) -> dict[str, str]:
        return {"checkpointLocation": f"{self.output}/checkpoints/{query}"}


def streak_records(streaks: DataFrame) -> DataFrame:
    """Streaks as records: the carrier is the key, the value a JSON object with times in UTC."""
    message = F.to_json(F.struct("*"), {"timeZone": "UTC"})
    return streaks.select(F.col("carrier").cast("binary").alias("key"), message.cast("binary").alias("value"))


@dataclass(frozen=True)
class QueryProgress:
    """How far a query is."""

    name: str
    records: int
    """Read from the topic since the checkpoint's beginning, if the topic begins at offset 0."""
    batches: int
    watermark: str
    """Event time before which nothing is waited for any more, ISO 8601; "" before there is one."""
    dropped: int
    """Rows that came after the watermark had passed them, in this run's latest batches (Spark remembers 100)."""

    @classmethod
    def of(cls, query: StreamingQuery) -> QueryProgress:
        """Of a query that runs or has ended."""
        latest = query.lastProgress
        if latest is None:
            return cls(str(query.name), 0, 0, "", 0)
        ends = [json.loads(source.endOffset or "{}") for source in latest.sources]
        records = sum(sum(offsets.values()) for topics in ends for offsets in topics.values())
        watermark = dict(latest.eventTime).get("watermark", "")
        states = [state for progress in query.recentProgress for state in progress.stateOperators]
        dropped = sum(state.numRowsDroppedByWatermark for state in states)
        shown = "" if watermark.startswith("1970") else watermark
        return cls(str(query.name), records, latest.batchId + 1, shown, dropped)


def is_worker_timeout(error: Exception) -> bool:
    """Whether a query has failed only since the machine was busy: Spark waits ten seconds for a Python to start.

    Like any query that has ended it goes on where it was when it is started again.
    """
    return "Python worker failed to connect back" in str(error)


def hours_of_day(delays: DataFrame) -> list[HourOfDay]:
    """Delays by carrier and hour of the day in New York, whatever the session's timezone; what the plot draws."""
    local = F.convert_timezone(None, F.lit(NEW_YORK), F.col("start").cast("timestamp_ntz"))
    sums = delays.groupBy("carrier", F.hour(local).alias("hour")).agg(
        F.sum("departed").alias("departed"), F.coalesce(F.sum("delay_sum"), F.lit(0)).alias("delay_sum")
    )
    return [HourOfDay(*row) for row in sums.orderBy("carrier", "hour").collect()]
