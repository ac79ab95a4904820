"""`asyncgroup demo`: send a year of flights through Kafka, a consumer group and Spark, and check that none is lost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.common import cancel_on_sigterm, positive
from asyncgroup.cli.connection_options import ConnectionOptions, add_connection_options, connection_options
from asyncgroup.cli.extras import require_rich
from asyncgroup.config import ClientConfig

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands

__all__ = ["add_parser"]

_DESCRIPTION: Final = (
    "Produces the 336,776 flights of New York 2013 to a topic, reads them with a consumer group whose "
    "members come and go, lets Spark write them to Parquet, and checks that each arrived exactly once. At the same "
    "time Spark's own queries read the topic: delays by hour go to Parquet and a plot, delay streaks to another topic."
)


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `demo`."""
    parser = commands.add_parser(
        "demo",
        parents=[common],
        help="a year of flights through a consumer group into Spark",
        description=_DESCRIPTION,
    )
    add_connection_options(parser)
    parser.add_argument("--no-spark", action="store_true", help="let the handlers aggregate instead of Spark")
    parser.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        help="use only the first N flights of the CSV",
    )
    parser.add_argument("--keep", type=_new_directory, metavar="DIR", help="write all results to DIR")
    parser.add_argument(
        "--only-produce",
        action="store_true",
        help="create the topics flights and flights-streaks on the Kafka at --bootstrap-servers, produce the flights, "
        "and keep the topics: for the pipeline of asyncgroup.spark.examples.flights, or your own",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as a JSON object, and all other output to stderr",
    )
    parser.set_defaults(run=run)


def _new_directory(text: str) -> Path:
    directory = Path(text)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} exists and is not an empty directory")
    return directory


async def run(options: argparse.Namespace) -> int:
    """Run the demonstration; returns 0 if every flight arrived exactly once, otherwise 1. Raises RichMissing."""
    extra = "cli" if options.no_spark or options.only_produce else "demo"
    require_rich("the demo", f"pip install 'asyncgroup[{extra}]'")
    # the environment may name a production cluster: the demonstration uses a running Kafka only by its own arguments
    given = connection_options(options).without_environment_servers()
    given.config(ClientConfig)  # raises for a wrong property before anything is started
    if options.only_produce:
        return await _only_produce(options, given)
    from asyncgroup.demo.demo_run import Demo, DemoOptions

    demo_options = DemoOptions(
        bootstrap_servers=given.servers,
        properties=given.properties(ClientConfig) if given.servers else {},
        with_spark=not options.no_spark,
        rows=options.rows,
        keep=options.keep,
        as_json=options.json,
    )
    with cancel_on_sigterm():
        return await Demo(demo_options).run()


async def _only_produce(options: argparse.Namespace, given: ConnectionOptions) -> int:
    from asyncgroup.demo.produce import fill
    from asyncgroup.demo.screen import Screen

    servers = given.servers
    if servers is None:
        options.usage.error(
            "--only-produce needs --bootstrap-servers: the embedded cluster ends with the demo"
        )
        return 2
    with cancel_on_sigterm():
        screen = Screen(to_stderr=options.json)
        await fill(servers, options.rows, screen, given.properties(ClientConfig))
    return 0
