"""The whole pipeline: two streaming queries on one topic, one writes Parquet files, the other one a topic."""

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
    # transformWithState requires this state store
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}

STREAK_MESSAGE: Final = "carrier string, first timestamp, last timestamp, flights int, mean_delay double"

NEW_YORK: Final = "America/New_York"
"""The timezone of all departures."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The settings of the pipeline, which continues where it was if it is started again with the same settings.

    Spark stores the offsets of a batch before it starts, and its completion after its results are written. A pipeline that
    was killed repeats the last batch: its Parquet files count once, since Spark lists the files of completed batches only;
    its streaks may be in their topic twice, and `streaks` removes duplicates.
    """

    bootstrap_servers: str
    topic: str = "flights"
    streaks_topic: str = "flights-streaks"
    output: str
    """A directory for `delays` and `checkpoints`, as path or URI; accessible to driver and executors."""
    rows_per_trigger: int = 80_000
    tasks: int | None = None
    """Maximum tasks that read a batch; None: one for each partition. The number of cores is best."""
    group_id: str = "flights-pipeline"
    """Each query commits its offsets to the group `<group_id>-<query>`, so that tools show its progress."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties for connections (TLS, SASL), with Kafka's names."""
    source: str = "asyncgroup"
    sink: str = "asyncgroup"
    """Formats; Spark's `kafka` can also be used for both."""

    def session(self, spark: SparkSession) -> SparkSession:
        """Return a new session of the same Spark with the settings that the pipeline needs."""
        session = spark.newSession()
        for key, value in SETTINGS.items():
            session.conf.set(key, value)
        if "asyncgroup" in (self.source, self.sink):
            from asyncgroup.spark.session import register

            register(session)
        return session

    def start(self, session: SparkSession) -> list[StreamingQuery]:
        """Start both queries, which read up to the present end of the topic, and stop."""
        # Spark looks the sink up in the active session of the calling thread; creating a DataFrame makes this one active
        session.createDataFrame([], "nothing int")
        delays = self._start_delays(session)
        try:
            return [delays, self._start_streaks(session)]
        except BaseException:
            delays.stop()
            raise

    def delays(self, session: SparkSession) -> DataFrame:
        """Return the stored rows of `delays_by_hour`."""
        return session.read.parquet(f"{self.output}/delays")

    def streaks(self, session: SparkSession) -> DataFrame:
        """Return the rows of `delay_streaks` from their topic, without duplicates."""
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
    """Convert streaks to records: the key is the carrier, the value a JSON object with times in UTC."""
    message = F.to_json(F.struct("*"), {"timeZone": "UTC"})
    return streaks.select(F.col("carrier").cast("binary").alias("key"), message.cast("binary").alias("value"))


@dataclass(frozen=True)
class QueryProgress:
    """The progress of a query."""

    name: str
    records: int
    """Records read since the first run; correct if the topic begins at offset 0."""
    batches: int
    watermark: str
    """The watermark, ISO 8601; "" if there is none yet."""
    dropped: int
    """Rows that were older than the watermark, in the latest batches of this run (Spark remembers 100)."""

    @classmethod
    def of(cls, query: StreamingQuery) -> QueryProgress:
        """Return the progress of a running or ended query."""
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
    """Return whether a query failed because a Python worker did not start within Spark's ten seconds (a busy machine).

    The query can be started again, and continues where it was.
    """
    return "Python worker failed to connect back" in str(error)


def hours_of_day(delays: DataFrame) -> list[HourOfDay]:
    """Return delays by carrier and hour of the day in New York, independent of the session's timezone, for the plot."""
    local = F.convert_timezone(None, F.lit(NEW_YORK), F.col("start").cast("timestamp_ntz"))
    sums = delays.groupBy("carrier", F.hour(local).alias("hour")).agg(
        F.sum("departed").alias("departed"), F.coalesce(F.sum("delay_sum"), F.lit(0)).alias("delay_sum")
    )
    return [HourOfDay(*row) for row in sums.orderBy("carrier", "hour").collect()]
