"""The flights pipeline: JSON from a topic, decoded by Arrow; windows and streaks of event time; Parquet and a topic out.

    flights (topic) ──▶ events.flights ──┬──▶ delays.delays_by_hour  ──▶ Parquet ──▶ plot
                                         └──▶ streaks.delay_streaks ──▶ flights-streaks (topic)

`python -m asyncgroup.spark.examples.flights --help` runs it on a topic of yours, `asyncgroup demo` on its own, and
`declarative/tables.py` says the same to Spark's declarative pipelines.
"""
