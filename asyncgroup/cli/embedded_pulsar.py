"""`asyncgroup broker --pulsar`: run the embedded Pulsar as a program, for any Pulsar client."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncgroup.cli.broker_listeners import exposure_warning, is_free, node_ports, readable_errors
from asyncgroup.cli.broker_topics import InitialTopic
from asyncgroup.cli.common import stop_signals
from asyncgroup.cli.pulsar_settings import pulsar_settings
from asyncgroup.errors import UsageError

if TYPE_CHECKING:
    from asyncgroup.pulsar_broker import EmbeddedPulsar

__all__ = ["run_pulsar"]


async def run_pulsar(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from asyncgroup.pulsar_broker import EmbeddedPulsar, PulsarOptions

    _check(options)
    settings = pulsar_settings(options.settings)
    # signals first: Ctrl-C during the start also stops it in order
    with stop_signals() as stop, readable_errors(options):
        if options.admin_port and not is_free(options.host, options.admin_port):
            raise UsageError(f"{options.host}:{options.admin_port} is in use: choose another --admin-port")
        given = PulsarOptions(
            brokers=options.nodes,
            host=options.host,
            advertised_host=options.advertised_host,
            port=options.port,
            admin=options.admin_port is not None,
            admin_port=options.admin_port or 0,
            history_limit=0,
            **settings,
        )
        async with EmbeddedPulsar(given) as pulsar:
            # before the ready line, at which scripts go on
            if warning := exposure_warning(
                options.host, None, has_credentials=bool(given.tokens or given.users)
            ):
                print(f"asyncgroup broker: {warning}", file=sys.stderr, flush=True)
            _create(pulsar, options.topic)
            print(_ready_lines(pulsar, options), flush=True)
            if sys.stdout.isatty() and not options.json:
                print("press Ctrl-C to stop", flush=True)
            await stop.wait()
    return stop.exit_code


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError for options that a Pulsar does not have."""
    if options.data_dir is not None:
        raise UsageError("--data-dir is not allowed with --pulsar, which keeps messages in memory")
    # clients connect to the address in the answers to lookups, and this is not an address to connect to
    if options.host in ("0.0.0.0", "::") and options.advertised_host is None:
        raise UsageError(
            f"--host {options.host} is allowed only with --advertised-host: the host that clients connect to"
        )
    node_ports(options)
    for topic in options.topic:
        if topic.configs:
            raise UsageError(f"--topic {topic} is not allowed: NAME:PARTITIONS with --pulsar")


def _create(pulsar: EmbeddedPulsar, topics: Sequence[InitialTopic]) -> None:
    from asyncgroup.pulsar_broker import ServerFailure

    for topic in topics:
        try:
            pulsar.create_topic(topic.name, topic.partitions)
        except ServerFailure as error:
            raise UsageError(f"--topic {topic}: {error}") from error


def _ready_lines(pulsar: EmbeddedPulsar, options: argparse.Namespace) -> str:
    has_admin = options.admin_port is not None
    if not options.json:
        lines = [f"service URL: {pulsar.service_url}"]
        return "\n".join([*lines, f"admin URL: {pulsar.admin_url}"] if has_admin else lines)
    brokers: list[dict[str, Any]] = [
        {"id": broker.id, "host": broker.advertised_host, "port": broker.port}
        for broker in pulsar.brokers.values()
    ]
    admin = {"admin_url": pulsar.admin_url} if has_admin else {}
    return json.dumps({"service_url": pulsar.service_url, **admin, "brokers": brokers})
