"""`asyncgroup broker`: the embedded cluster, for other programs to talk to."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from asyncgroup.checks import check_topic
from asyncgroup.cli.common import argument, port, positive, stop_signals
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands

__all__ = ["add_parser"]


class NewTopic(NamedTuple):
    """A topic to begin with."""

    name: str
    partitions: int


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `broker`."""
    parser = commands.add_parser(
        "broker",
        parents=[common],
        help="run an embedded Kafka cluster",
        description="Runs a Kafka cluster in memory, which any Kafka client can use: node n listens on port + n - 1. "
        "Prints its bootstrap servers when it is ready. Ctrl-C ends it, and its records with it.",
    )
    parser.add_argument(
        "--port", type=port, default=9092, help="the first node's port (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=positive, default=1, help="how many nodes (default: %(default)s)")
    parser.add_argument(
        "--host", default="127.0.0.1", type=_host, help="the address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=_topic,
        metavar="NAME:PARTITIONS",
        help="a topic to create; may be given several times. Others are created on first use, with one partition",
    )
    parser.set_defaults(run=run)


def _host(text: str) -> str:
    if not text.strip():
        # it would listen everywhere, and be nowhere to be found for clients
        raise argparse.ArgumentTypeError("the host is empty")
    return text


def _topic(text: str) -> NewTopic:
    name, colon, count = text.rpartition(":")
    if not colon or not (count.isascii() and count.isdecimal()) or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS")
    return NewTopic(argument(check_topic)(name), int(count))


async def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from asyncgroup.broker import EmbeddedCluster

    last = options.port + options.nodes - 1
    if last > 65535:
        raise ConfigError(
            "nodes", options.nodes, f"at most {65536 - options.port} from port {options.port} on"
        )
    ports = range(options.port, last + 1) if options.port else None
    with stop_signals() as stop:
        # the history serves tests; here it would only grow
        async with EmbeddedCluster(
            options.nodes, host=options.host, ports=ports, auto_create_topics=True, history_limit=0
        ) as cluster:
            for topic in options.topic:
                cluster.create_topic(topic.name, topic.partitions)
            print(f"bootstrap: {cluster.bootstrap_servers}", flush=True)
            if sys.stdout.isatty():
                print("Ctrl-C ends it", flush=True)
            await stop.wait()
    return 0
