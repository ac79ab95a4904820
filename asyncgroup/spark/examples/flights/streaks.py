"""Delay streaks: consecutive late departures of a carrier, found by a stateful processor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame, functions as F, types as t  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from asyncgroup.spark.examples.flights.delays import WATERMARK

__all__ = [
    "LATE_MINUTES",
    "MIN_STREAK_FLIGHTS",
    "STREAK_SCHEMA",
    "DelayStreak",
    "DelayStreakProcessor",
    "Departure",
    "delay_streaks",
    "fold_departures",
]

LATE_MINUTES: Final = 15
"""Delay in minutes from which a departure counts as late."""

MIN_STREAK_FLIGHTS: Final = 10
"""Minimum number of late departures for a streak to be emitted."""

STREAK_SCHEMA: Final = t.StructType(
    [
        t.StructField("carrier", t.StringType()),
        t.StructField("first_ms", t.LongType()),
        t.StructField("last_ms", t.LongType()),
        t.StructField("flights", t.IntegerType()),
        t.StructField("delay_sum", t.LongType()),
    ]
)
"""The processor's output; not given as DDL text, which Spark would have to analyze: declared flows do not allow that."""


class Departure(NamedTuple):
    """A departed flight."""

    scheduled_ms: int
    """Milliseconds since 1970."""
    row: int
    """Row number in the CSV file."""
    dep_delay: int
    """Minutes."""


class DelayStreak(NamedTuple):
    """Consecutive late departures."""

    first_ms: int
    """Event time of the first departure, in milliseconds since 1970."""
    last_ms: int
    """Event time of the last departure, in milliseconds since 1970."""
    flights: int
    delay_sum: int
    """Minutes."""


def fold_departures(
    streak: DelayStreak | None, departures: Iterable[Departure]
) -> tuple[DelayStreak | None, list[DelayStreak]]:
    """Continue a streak with departures in order; return the streak that is still open, and those that have ended."""
    ended = []
    for departure in departures:
        if departure.dep_delay >= LATE_MINUTES:
            begun = streak or DelayStreak(departure.scheduled_ms, 0, 0, 0)
            flights, delay_sum = begun.flights + 1, begun.delay_sum + departure.dep_delay
            streak = DelayStreak(begun.first_ms, departure.scheduled_ms, flights, delay_sum)
        elif streak is not None:
            ended.append(streak)
            streak = None
    return streak, [each for each in ended if each.flights >= MIN_STREAK_FLIGHTS]


class DelayStreakProcessor(StatefulProcessor):
    """Finds the streaks of each carrier.

    The rows of a batch are not ordered, and rows of the next batch may belong between them. So departures are kept in the
    state until the watermark has passed them: Spark then drops older rows, and the departures are processed in event-time
    order, independently of the batches. A timer does so if no more rows come.

    Rows arrive as pandas frames (`transformWithStateInPandas`): Row objects would take ten times the CPU.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        # arrays in a single value: a list state would serialize and send each of 100,000 departures separately
        self._waiting = handle.getValueState(
            "waiting", "scheduled_ms array<long>, row array<int>, dep_delay array<int>"
        )
        self._streak = handle.getValueState(
            "streak", "first_ms long, last_ms long, flights int, delay_sum long"
        )

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        news = [departure for frame in rows for departure in _departures(frame)]
        return self._advance(key, news, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N802, N803
        return self._advance(key, [], timerValues.getCurrentWatermarkInMs())

    def _advance(self, key: Any, news: list[Departure], watermark: int) -> Iterator[pd.DataFrame]:
        waiting = sorted([*self._read_waiting(), *news])
        passed = sum(each.scheduled_ms <= watermark for each in waiting)
        if not news and not passed:
            return
        streak, ended = fold_departures(self._read_streak(), waiting[:passed])
        if streak is not None:
            self._streak.update(tuple(streak))
        else:
            self._streak.clear()
        if rest := waiting[passed:]:
            self._waiting.update(tuple(map(list, zip(*rest, strict=True))))
            self._handle.registerTimer(rest[0].scheduled_ms)
        else:
            self._waiting.clear()
        if ended:
            yield pd.DataFrame([(key[0], *each) for each in ended], columns=STREAK_SCHEMA.names)

    def _read_waiting(self) -> Iterator[Departure]:
        return map(Departure, *(self._waiting.get() or ((), (), ())))

    def _read_streak(self) -> DelayStreak | None:
        found = self._streak.get()
        return None if found is None else DelayStreak(*found)


def _departures(frame: pd.DataFrame) -> list[Departure]:
    """Return the departed flights of a frame; `dep_delay` is null for the others."""
    left = frame.loc[frame["dep_delay"].notna(), ["scheduled_ms", "row", "dep_delay"]].astype("int64")
    return list(map(Departure, *(left[name].tolist() for name in Departure._fields)))


def delay_streaks(flights: DataFrame) -> DataFrame:
    """Return one row per streak: carrier, event times of the first and last flight, flights, mean delay in minutes."""
    late = flights.withWatermark("scheduled", WATERMARK).withColumn(
        # as numbers, since Python datetimes would be in the worker's timezone
        "scheduled_ms",
        F.unix_millis("scheduled"),
    )
    needed = late.select("carrier", "scheduled", "scheduled_ms", "row", "dep_delay")
    streaks = needed.groupBy("carrier").transformWithStateInPandas(
        DelayStreakProcessor(), STREAK_SCHEMA, "Append", "EventTime"
    )
    return streaks.select(
        "carrier",
        F.timestamp_millis("first_ms").alias("first"),
        F.timestamp_millis("last_ms").alias("last"),
        "flights",
        (F.col("delay_sum") / F.col("flights")).alias("mean_delay"),
    )
