"""The flights pipeline: decode JSON from a topic with Arrow, compute event-time windows and delay streaks, store both.

    flights (topic) ──▶ events.flights ──┬──▶ delays.delays_by_hour  ──▶ Parquet ──▶ plot
                                         └──▶ streaks.delay_streaks ──▶ flights-streaks (topic)

`pipeline` puts together `events`, `delays` and `streaks`, and `plot` draws the result.

`python -m asyncgroup.spark.examples.flights` runs it on a topic of yours, `asyncgroup demo` on its own data;
`declarative/tables.py` is the same pipeline for Spark's declarative pipelines.
"""
