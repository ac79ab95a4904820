"""Delay streaks: late departures of a carrier one after another, found by a stateful processor."""

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
"""Minutes from which on a departure counts as late."""

MIN_STREAK_FLIGHTS: Final = 10
"""Late departures that make a streak worth telling."""

STREAK_SCHEMA: Final = t.StructType(
    [
        t.StructField("carrier", t.StringType()),
        t.StructField("first_ms", t.LongType()),
        t.StructField("last_ms", t.LongType()),
        t.StructField("flights", t.IntegerType()),
        t.StructField("delay_sum", t.LongType()),
    ]
)
"""What the processor puts out; a type and no text, which Spark would have to analyse: declared flows must not do that."""


class Departure(NamedTuple):
    """A flight that left: when it should have (ms since 1970), its row in the CSV, minutes of delay."""

    scheduled_ms: int
    row: int
    dep_delay: int


class DelayStreak(NamedTuple):
    """Late departures in a row: event times of the first and the last (ms), how many, and their delays' sum."""

    first_ms: int
    last_ms: int
    flights: int
    delay_sum: int


def fold_departures(
    streak: DelayStreak | None, departures: Iterable[Departure]
) -> tuple[DelayStreak | None, list[DelayStreak]]:
    """Go on from a streak with departures in order: the streak that goes on, and those that have ended."""
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
    """Streaks of one carrier.

    A batch holds its rows in no order, and rows that belong between them may come in the next. So departures wait in
    the state until the watermark has passed them: from then on Spark lets no older one through, and they are folded in
    the order of their event times, whatever the batches were. A timer sees to it when no more rows come.

    Rows arrive as pandas frames (`transformWithStateInPandas`): as Row objects the same rows take ten times the CPU.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        # arrays in one value: a list state sends and serializes each of a hundred thousand departures by itself
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
    """The flights of a frame that left; `dep_delay` is null for those that did not."""
    left = frame.loc[frame["dep_delay"].notna(), ["scheduled_ms", "row", "dep_delay"]].astype("int64")
    return list(map(Departure, *(left[name].tolist() for name in Departure._fields)))


def delay_streaks(flights: DataFrame) -> DataFrame:
    """Streaks in a row each: carrier, event times of the first and the last flight, flights, mean delay in minutes."""
    late = flights.withWatermark("scheduled", WATERMARK).withColumn(
        # the processor gets plain numbers: a Python datetime would be in the worker's timezone
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
