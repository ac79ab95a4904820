"""`asyncgroup broker`: run the embedded cluster as a program, for any Kafka client, or with `--pulsar` for Pulsar's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.cli.broker_listeners import exposure_warning, node_ports, readable_errors
from asyncgroup.cli.broker_settings import add_set_option, cluster_options
from asyncgroup.cli.broker_topics import InitialTopic, initial_topic
from asyncgroup.cli.common import port, positive, stop_signals
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError

if TYPE_CHECKING:
    from asyncgroup.broker import EmbeddedCluster
    from asyncgroup.cli.common import Commands

__all__ = ["add_parser", "exposure_warning"]

_DESCRIPTION: Final = (
    "Runs a Kafka cluster that any Kafka client can use: node n listens on port + n - 1. Prints its "
    "bootstrap servers when it is ready. Ctrl-C stops it and discards its records, unless --data-dir keeps them. "
    "With -v it logs which members join and leave groups, why groups rebalance, what they commit, and which leaders "
    "move. With --pulsar it runs an Apache Pulsar in memory instead, and prints its service URL."
)

_DEFAULT_PORTS: Final = {False: 9092, True: 6650}
"""Without and with --pulsar."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `broker`."""
    parser = commands.add_parser(
        "broker", parents=[common], help="run an embedded Kafka cluster or Pulsar", description=_DESCRIPTION
    )
    parser.add_argument(
        "--pulsar",
        action="store_true",
        help="run an Apache Pulsar in memory instead; not with --data-dir",
    )
    parser.add_argument("--port", type=port, help="the first node's port (default: 9092, with --pulsar 6650)")
    parser.add_argument(
        "--nodes",
        "--brokers",
        type=positive,
        default=1,
        metavar="NUMBER",
        help="number of nodes, which Pulsar calls brokers (default: %(default)s)",
    )
    parser.add_argument(
        "--admin-port",
        type=port,
        metavar="PORT",
        help="with --pulsar: serve requests of Pulsar's admin API at this port",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", type=_host, help="the address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--advertised-host",
        type=_host,
        metavar="HOST",
        help="the host that clients connect to (default: that of --host; needed with 0.0.0.0)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIRECTORY",
        help="keep records, topics, groups and transactions in this directory; a broker started there again continues "
        "with them. Acknowledged records survive kill -9, but not a power failure",
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=initial_topic,
        metavar="NAME:PARTITIONS[:KEY=VALUE...]",
        help="a topic to create, with its settings, such as orders:6:cleanup.policy=compact; can be repeated. A topic "
        "that exists in --data-dir is not changed. Other topics are created on first use, with one partition (with --pulsar "
        "without partitions)",
    )
    add_set_option(parser)
    parser.add_argument("--json", action="store_true", help="print the ready line as JSON, for scripts")
    parser.set_defaults(run=run)


def _host(text: str) -> str:
    if not text.strip():
        # the socket would listen on all addresses, and clients could not connect to an empty advertised host
        raise argparse.ArgumentTypeError("the host is empty")
    return text


async def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    if options.port is None:
        options.port = _DEFAULT_PORTS[options.pulsar]
    if options.pulsar:
        from asyncgroup.cli.embedded_pulsar import run_pulsar

        return await run_pulsar(options)
    if options.admin_port is not None:
        raise UsageError("--admin-port is allowed only with --pulsar")
    from asyncgroup.broker import ClusterOptions, EmbeddedCluster
    from asyncgroup.cli.commit_log import log_commits, log_timestamps

    if options.verbose:
        log_timestamps()
    # signals first: Ctrl-C during the start also stops it in order
    with stop_signals() as stop, readable_errors(options):
        given: dict[str, Any] = {
            # Kafka's default, which --set can change
            "auto_create_topics": True,
            # only the commit log of -v reads the history
            "history_limit": 10_000 if options.verbose else 0,
            **cluster_options(options.settings, options.nodes),
        }
        # clients connect to the address in the metadata, and this is not an address to connect to
        if options.host in ("0.0.0.0", "::") and options.advertised_host is None:
            raise UsageError(
                f"--host {options.host} is allowed only with --advertised-host: the host that clients connect to"
            )
        cluster = EmbeddedCluster(
            ClusterOptions(
                nodes=options.nodes,
                host=options.host,
                advertised_host=options.advertised_host,
                ports=node_ports(options),
                data_dir=options.data_dir,
                **given,
            )
        )
        async with cluster:
            # before the ready line, at which scripts go on
            if warning := exposure_warning(options.host, given.get("security")):
                print(f"asyncgroup broker: {warning}", file=sys.stderr, flush=True)
            # before the ready line: a script that waits for it finds the topics
            _create(cluster, options.topic, may_exist=options.data_dir is not None)
            print(_ready_line(cluster, as_json=options.json), flush=True)
            if sys.stdout.isatty() and not options.json:
                print("press Ctrl-C to stop", flush=True)
            if options.verbose:
                async with log_commits(cluster):
                    await stop.wait()
            else:
                await stop.wait()
    return stop.exit_code


def _create(cluster: EmbeddedCluster, topics: Sequence[InitialTopic], *, may_exist: bool) -> None:
    from asyncgroup.broker import Refused

    for number, topic in enumerate(topics):
        # or with --data-dir the second one would be taken for a topic of an earlier run
        if any(topic.name == other.name for other in topics[:number]):
            raise UsageError(f"--topic {topic}: {topic.name!r} is given twice")
        try:
            cluster.create_topic(topic.name, topic.partitions, configs=topic.configs)
        except Refused as error:
            if not (may_exist and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise UsageError(f"--topic {topic}: {error}") from error


def _ready_line(cluster: EmbeddedCluster, *, as_json: bool) -> str:
    if not as_json:
        return f"bootstrap: {cluster.bootstrap_servers}"
    nodes: list[dict[str, Any]] = [
        {"id": node.id, "host": node.advertised_host, "port": node.port} for node in cluster.nodes.values()
    ]
    return json.dumps({"bootstrap_servers": cluster.bootstrap_servers, "nodes": nodes})
