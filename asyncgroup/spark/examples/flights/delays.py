"""Mean departure delay by carrier and hour: windows of event time behind a watermark."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, functions as F  # noqa: N812  the name that Spark's users know

__all__ = ["WATERMARK", "delays_by_hour"]

WATERMARK: Final = "10 days"
"""How far events may be behind the newest one.

A flight is known when it leaves, so one of 2013 comes up to 22 hours after its event time. But the watermark follows
the newest event of *any* partition, and a batch takes from each partition in proportion to what lies in it: one with
carriers that fly more in summer is up to five days behind another with the same offsets' share. Ten days cover both.
"""


def delays_by_hour(flights: DataFrame) -> DataFrame:
    """An hour of a carrier in a row: `start` and `end` of the hour, flights, those that left, their delays' sum and mean.

    In a stream (output mode append) an hour comes out once, when the watermark has passed its end.
    """
    windows = flights.withWatermark("scheduled", WATERMARK).groupBy(
        "carrier", F.window("scheduled", "1 hour").alias("hour")
    )
    counted = windows.agg(
        F.count("carrier").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("delay_sum"),
        F.avg("dep_delay").alias("mean_delay"),
    )
    # heartbeats make windows without a carrier. They have to pass the watermark, so they may go only here: a condition
    # on the carrier itself would be pushed below the watermark by Spark, and the heartbeats would be none
    return counted.where("flights > 0").select(
        "carrier", "hour.*", "flights", "departed", "delay_sum", "mean_delay"
    )
