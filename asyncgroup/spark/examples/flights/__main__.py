"""Run the pipeline on a topic, up to the topic's end. A second run continues where the first has ended or was killed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Final = 1
"""Seconds between two checks of a query's progress."""

CONFIG: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; raise what a query raises."""
    options = _parser().parse_args(arguments)
    cores = os.cpu_count() or 1
    try:
        spark = local_session("flights", cores=cores, config=CONFIG)
    except AsyncGroupError as error:
        sys.exit(str(error))
    # imported after the check above, which says what to install if pyspark or pyarrow is missing
    from asyncgroup.spark.examples.flights.pipeline import Pipeline, hours_of_day
    from asyncgroup.spark.examples.flights.plot import delay_by_hour_svg

    try:
        pipeline = Pipeline(
            bootstrap_servers=options.bootstrap_servers,
            topic=options.topic,
            streaks_topic=options.streaks_topic,
            output=options.output if "://" in options.output else Path(options.output).absolute().as_uri(),
            rows_per_trigger=options.rows_per_trigger,
            tasks=cores,
            group_id=options.group,
        )
        session = pipeline.session(spark)
        for query in pipeline.start(session):
            _watch(query)
        if options.plot is not None:
            rows = hours_of_day(pipeline.delays(session))
            Path(options.plot).write_text(delay_by_hour_svg(rows, {}), encoding="utf-8")
    finally:
        spark.stop()


def _watch(query: StreamingQuery) -> None:
    from asyncgroup.spark.examples.flights.pipeline import QueryProgress

    printed = ended = None
    while not ended:
        ended = query.awaitTermination(POLL_SECONDS)
        if (progress := QueryProgress.of(query)) != printed:
            print(progress, flush=True)  # noqa: T201  a program's output
            printed = progress


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m asyncgroup.spark.examples.flights", description=__doc__)
    parser.add_argument("-b", "--bootstrap-servers", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--topic", default="flights", help="the topic of the flights, as produced by `asyncgroup demo`"
    )
    parser.add_argument(
        "--streaks-topic", default="flights-streaks", help="the topic for streaks; must exist"
    )
    parser.add_argument("--output", required=True, help="a directory or URI for Parquet and checkpoints")
    parser.add_argument("--group", default="flights-pipeline", help="prefix of the queries' group ids")
    parser.add_argument("--rows-per-trigger", type=int, default=80_000, metavar="N")
    parser.add_argument("--plot", metavar="FILE", help="draw the delay by hour of the day, as SVG")
    return parser


if __name__ == "__main__":
    main()
