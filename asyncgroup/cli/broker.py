"""`asyncgroup broker`: run the embedded cluster as a program, for any Kafka client."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncgroup.checks import check_topic
from asyncgroup.cli.broker_settings import add_set_option, cluster_options
from asyncgroup.cli.common import argument, port, positive, stop_signals
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from asyncgroup.broker import EmbeddedCluster, ListenerSecurity
    from asyncgroup.cli.common import Commands

__all__ = ["add_parser", "exposure_warning"]

_DESCRIPTION: Final = (
    "Runs a Kafka cluster that any Kafka client can use: node n listens on port + n - 1. Prints its "
    "bootstrap servers when it is ready. Ctrl-C stops it and discards its records, unless --data-dir keeps them. "
    "With -v it logs which members join and leave groups, why groups rebalance, what they commit, and which leaders "
    "move."
)


class NewTopic(NamedTuple):
    """A topic to create at the start, as given by `--topic`."""

    name: str
    partitions: int
    configs: dict[str, str]

    def __str__(self) -> str:
        return ":".join([self.name, str(self.partitions), *(f"{k}={v}" for k, v in self.configs.items())])


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `broker`."""
    parser = commands.add_parser(
        "broker", parents=[common], help="run an embedded Kafka cluster", description=_DESCRIPTION
    )
    parser.add_argument(
        "--port", type=port, default=9092, help="the first node's port (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=positive, default=1, help="number of nodes (default: %(default)s)")
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
        type=_topic,
        metavar="NAME:PARTITIONS[:KEY=VALUE...]",
        help="a topic to create, with its settings, such as orders:6:cleanup.policy=compact; can be repeated. A topic "
        "that exists in --data-dir is not changed. Other topics are created on first use, with one partition",
    )
    add_set_option(parser)
    parser.add_argument("--json", action="store_true", help="print the ready line as JSON, for scripts")
    parser.set_defaults(run=run)


def _host(text: str) -> str:
    if not text.strip():
        # the socket would listen on all addresses, and clients could not connect to an empty advertised host
        raise argparse.ArgumentTypeError("the host is empty")
    return text


def _topic(text: str) -> NewTopic:
    # a topic's name has no colon; a value with one cannot be given here
    name, count, *settings = text.split(":") if ":" in text else (text, "")
    if not (count.isascii() and count.isdecimal()) or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS[:KEY=VALUE...]")
    configs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise argparse.ArgumentTypeError(f"{setting!r} in {text!r} is not KEY=VALUE")
        configs[key] = value
    return NewTopic(argument(check_topic)(name), int(count), configs)


async def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from asyncgroup.broker import ClusterOptions, EmbeddedCluster
    from asyncgroup.cli.commit_log import log_commits, log_timestamps

    if options.verbose:
        log_timestamps()
    # signals first: Ctrl-C during the start also stops it in order
    with stop_signals() as stop, _readable_errors(options):
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
                ports=_ports(options),
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


def _ports(options: argparse.Namespace) -> range | None:
    """Return the nodes' ports; None for any free ports."""
    last = options.port + options.nodes - 1
    if last > 65535:
        allowed = f"at most {65536 - options.port} with --port {options.port}"
        raise UsageError(f"--nodes {options.nodes} is not allowed: {allowed}")
    # port 0: each node gets any free port
    return range(options.port, last + 1) if options.port else None


def _create(cluster: EmbeddedCluster, topics: Sequence[NewTopic], *, may_exist: bool) -> None:
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


@contextmanager
def _readable_errors(options: argparse.Namespace) -> Iterator[None]:
    """Turn errors of listeners, of the data directory and of options into errors that name the flag and its value."""
    try:
        yield
    except socket.gaierror as error:
        raise UsageError(
            f"--host {options.host} is not allowed: an address of this machine ({error.strerror})"
        ) from error
    except ConfigError as error:
        # keys of the cluster that have a flag here; others are of --set, whose text names them
        flag = {"nodes": "--nodes", "data_dir": "--data-dir"}.get(error.key)
        if flag is None:
            raise
        raise UsageError(f"{flag} {error.value} is not allowed: {error.allowed}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"{_address_in_use(options)} is in use: choose another --port") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--host {options.host} is not allowed: an address of this machine") from error
        # errors of sockets have no file name
        if error.filename is not None and options.data_dir is not None:
            what = "it is not a directory" if isinstance(error, FileExistsError) else error
            raise UsageError(f"--data-dir {options.data_dir} cannot be used: {what}") from error
        raise


def exposure_warning(host: str, security: ListenerSecurity | None) -> str | None:
    """Return a warning if other machines can connect to the cluster, otherwise None."""
    try:
        # a name may have several addresses, and one that is not local is enough
        addresses = {found[4][0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        addresses = {host}
    if all(_is_loopback(str(address)) for address in addresses):
        return None
    who = "every user of --set users" if security is not None and security.sasl else "any client"
    return f"warning: other machines can connect to --host {host}: {who} can read and write all topics"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _address_in_use(options: argparse.Namespace) -> str:
    """Return the first of the nodes' addresses that is in use."""
    for number in _ports(options) or ():
        with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as probe:
            # as the listener does: a port of a connection that has just ended is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((options.host, number))
            except OSError:
                return f"{options.host}:{number}"
    return f"one of the ports of {options.host} from {options.port} on"
