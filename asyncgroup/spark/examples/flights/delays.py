"""Mean departure delay by carrier and hour: event-time windows with a watermark."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, functions as F  # noqa: N812  the name that Spark's users know

__all__ = ["WATERMARK", "delays_by_hour"]

WATERMARK: Final = "10 days"
"""How much older than the newest event an event may be.

A flight's record is produced when it departs, in 2013 up to 22 hours after its event time. But the watermark follows the
newest event of *any* partition, and a batch reads from each partition in proportion to its size: a partition whose
carriers fly more in summer is up to five days behind another one at the same share of its offsets. Ten days cover both.
"""


def delays_by_hour(flights: DataFrame) -> DataFrame:
    """Return one row per carrier and hour: `start`, `end`, flights, departed flights, sum and mean of their delays.

    In a stream (output mode append) each hour is emitted once, when the watermark has passed its end.
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
    # Heartbeats create windows without a carrier, which are removed here. They must advance the watermark first: Spark
    # would push a condition on the carrier below the watermark, and the heartbeats would have no effect.
    return counted.where("flights > 0").select(
        "carrier", "hour.*", "flights", "departed", "delay_sum", "mean_delay"
    )
