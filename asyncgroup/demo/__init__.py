"""The demonstration: a year of flights through Kafka, a consumer group and Spark, and the check that none is lost.

    flights (CSV) ──▶ produce ──▶ flights (topic) ──┬──▶ group_run (members, gate) ──▶ sinks
                                                    └──▶ queries (Spark) ──▶ Parquet, plot, flights-streaks (topic)

- `demo_run` is the run from start to end. `target` is the cluster with the topics and the group of a run.
- `produce` writes the flights, `group_run` runs the `members` and collects in `sinks`, `queries` are Spark's.
- `flights` reads the CSV, and `expected` computes from it what Spark's queries should find; `report` compares.
- `progress` counts what members have delivered and committed; `views` and `screen` show it.

The command is `asyncgroup demo`, in `asyncgroup.cli.demo`. Modules here import rich, for which the command checks first.
"""
