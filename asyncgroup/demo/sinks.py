"""The sinks of the group: Parquet files with Spark, otherwise memory.

Both store a record once that is delivered twice.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncgroup.demo.flights import CarrierFigures, Figures
from asyncgroup.group import Claim, Handler, Session
from asyncgroup.model import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FoundFlights", "MemorySink", "MemorySinkHandler", "decoded", "read_back"]

EXAMPLES: Final = 5
"""Rows that a report of missing or repeated rows names."""
SCHEMA: Final = "row int, carrier string, dep_delay int"
"""The fields of a flight's JSON object that are stored."""


class FoundFlights(NamedTuple):
    """The flights that arrived."""

    figures: Figures
    distinct: int
    """The number of different rows."""
    missing: list[int]
    """The first rows of the CSV that are missing."""
    twice: list[int]
    """The first rows of the CSV that arrived more than once."""


def decoded(df: DataFrame) -> DataFrame:
    """Return what is stored of a batch: the flights' columns, and topic, partition and offset of each record."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    flight = F.from_json(F.col("value").cast("string"), SCHEMA).alias("flight")
    return df.select("topic", "partition", "offset", flight).select(
        "topic", "partition", "offset", "flight.*"
    )


def read_back(spark: SparkSession, root: Path, flights: int) -> FoundFlights:
    """Read what `ParquetByRange` has stored, and compare it with the expected number of flights. Blocks."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    from asyncgroup.spark import ParquetByRange

    found = ParquetByRange.read(spark, root).select("row", "carrier", "dep_delay").cache()
    by_carrier = found.groupBy("carrier").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count("dep_delay").alias("delays"),
        F.sum("dep_delay").alias("delay_sum"),
    )
    figures = Figures(
        {r.carrier: CarrierFigures(r.flights, r.delays, r.delay_sum or 0) for r in by_carrier.collect()}
    )
    distinct = found.agg(F.count_distinct("row")).collect()[0][0]
    wanted = spark.range(1, flights + 1).withColumnRenamed("id", "row")
    missing = [] if distinct == flights else _rows(wanted.join(found, "row", "left_anti"))
    several = found.groupBy("row").count().where("count > 1")
    twice = [] if distinct == figures.flights else _rows(several)
    found.unpersist()
    return FoundFlights(figures, distinct, missing, twice)


def _rows(df: DataFrame) -> list[int]:
    return [r.row for r in df.select("row").orderBy("row").limit(EXAMPLES).collect()]


class MemorySink:
    """The batches of all members, by partition and first offset."""

    def __init__(self) -> None:
        self._entries: dict[int, dict[int, list[tuple[int, str, int | None]]]] = {}

    def add(self, batch: Batch) -> None:
        """Add a batch; it replaces the batches from its first offset on, which are being delivered again."""
        entries = self._entries.setdefault(batch.partition, {})
        for start in [start for start in entries if start >= batch.first_offset]:
            del entries[start]
        entries[batch.first_offset] = [_columns(json.loads(record.value or b"{}")) for record in batch]

    def read(self, flights: int) -> FoundFlights:
        """Add up all batches, and compare them with the expected number of flights. Blocks."""
        figures, seen = Figures(), Counter[int]()
        for entries in self._entries.values():
            for rows in entries.values():
                for row, carrier, dep_delay in rows:
                    seen[row] += 1
                    figures.add(carrier, dep_delay)
        missing = [row for row in range(1, flights + 1) if row not in seen]
        twice = sorted(row for row, count in seen.items() if count > 1)
        return FoundFlights(figures, len(seen), missing[:EXAMPLES], twice[:EXAMPLES])


def _columns(flight: dict[str, Any]) -> tuple[int, str, int | None]:
    return flight["row"], flight["carrier"], flight["dep_delay"]


class MemorySinkHandler(Handler):
    """Adds batches of at most `max_records` records to a `MemorySink`, and marks them."""

    def __init__(self, memory_sink: MemorySink, max_records: int = 1_000) -> None:
        self._sink = memory_sink
        self._max_records = max_records

    async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
        async for batch in claim.batches(max_records=self._max_records):
            self._sink.add(batch)
            claim.mark(batch)
