"""`asyncgroup broker --set NAME=VALUE`: options of the embedded cluster, by Kafka's setting names or our option names."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, Final

from asyncgroup.cli.setting_values import (
    INTERVAL,
    MILLISECONDS,
    SECONDS,
    Parse,
    Setting,
    boolean,
    idle_time,
    integer,
    names,
    pairs,
    racks,
    scaled,
    setting,
)
from asyncgroup.counting import counted
from asyncgroup.errors import ConfigError, UsageError

__all__ = ["add_set_option", "cluster_options"]


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --set."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        dest="settings",
        metavar="NAME=VALUE",
        help="a broker setting by Kafka's name, such as num.partitions=6, log.retention.ms=60000 or "
        "group.initial.rebalance.delay.ms=3000, or an option of EmbeddedCluster, such as racks=a,b,c (one for each "
        "node), users=alice:secret,bob:other (SASL: PLAIN and SCRAM) or cert_file=broker.pem (TLS); can be repeated. With "
        "--pulsar a setting by Pulsar's name, such as brokerDeduplicationEnabled=true, or an option of EmbeddedPulsar, such as "
        "tokens=secret:admin. Other users of this machine can see arguments, including passwords",
    )


_KAFKA_SETTINGS: Final[dict[str, tuple[str, Parse]]] = {
    "auto.create.topics.enable": ("auto_create_topics", boolean),
    "broker.rack": ("racks", racks),
    "connections.max.idle.ms": ("connections_max_idle", idle_time),
    "default.replication.factor": ("default_replication_factor", integer(1)),
    "group.consumer.assignment.interval.ms": ("group_consumer_assignment_interval", MILLISECONDS),
    "group.consumer.heartbeat.interval.ms": ("group_consumer_heartbeat_interval", INTERVAL),
    "group.consumer.max.size": ("group_consumer_max_size", integer(1)),
    "group.consumer.migration.policy": ("group_consumer_migration_policy", str.lower),
    "group.consumer.session.timeout.ms": ("group_consumer_session_timeout", INTERVAL),
    "group.version": ("group_version", integer(0)),
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay", MILLISECONDS),
    "group.max.session.timeout.ms": ("group_max_session_timeout", MILLISECONDS),
    "group.max.size": ("group_max_size", integer(1)),
    "group.min.session.timeout.ms": ("group_min_session_timeout", MILLISECONDS),
    "log.retention.check.interval.ms": ("retention_check_interval", INTERVAL),
    "num.partitions": ("default_partitions", integer(1)),
    "offsets.retention.check.interval.ms": ("offsets_retention_check_interval", INTERVAL),
    "offsets.retention.minutes": ("offsets_retention", scaled(60.0, "minutes")),
    "queued.max.request.bytes": ("queued_max_request_bytes", integer(1)),
    "transaction.version": ("transaction_version", integer(0)),
}
"""For each of Kafka's settings, the option of EmbeddedCluster and the parser of its value."""

_SECURITY_SETTINGS: Final[dict[str, tuple[str, Parse]]] = {
    "cert_file": ("cert_file", str),
    "client_ca_file": ("client_ca_file", str),
    "connections.max.reauth.ms": ("max_reauth", MILLISECONDS),
    "key_file": ("key_file", str),
    "key_password": ("key_password", str),
    "max_reauth": ("max_reauth", SECONDS),
    "mechanisms": ("mechanisms", names),
    "sasl.enabled.mechanisms": ("mechanisms", names),
    "users": ("users", pairs("NAME", "PASSWORD")),
}
"""The same for the options of `ListenerSecurity`."""

_FLAGS: Final = {
    "advertised_host": "--advertised-host",
    "data_dir": "--data-dir",
    "host": "--host",
    "nodes": "--nodes",
    "ports": "--port",
    "port": "--port",
    "topics": "--topic",
}
"""Options that have their own flag."""

_UNTYPED_OPTIONS: Final[dict[str, Parse]] = {
    "default_partitions": integer(1),
    "default_replication_factor": integer(1),
    "group_consumer_max_size": integer(1),
    "group_consumer_migration_policy": str.lower,
    "group_max_size": integer(1),
    "group_version": integer(0),
    "racks": racks,
    "seed": integer(-(2**63)),
    "start_time": integer(0),
    "transaction_version": integer(0),
}
"""Parsers of the options whose default value does not show their type."""


def _cluster_settings() -> dict[str, tuple[str, Parse]]:
    """The cluster's own options, with parsers chosen by the type of each default."""
    from asyncgroup.broker import ClusterOptions

    found: dict[str, tuple[str, Parse]] = {}
    for option in fields(ClusterOptions):
        name = option.name
        if name in _FLAGS or name in ("security", "settings"):
            continue
        kind = type(option.default)
        parse = _UNTYPED_OPTIONS.get(name) or {bool: boolean, int: integer(0), float: SECONDS}.get(kind)
        if parse is not None:
            found[name] = (name, parse)
    return found


# -- all of them ---------------------------------------------------------------------------------------------------


def cluster_options(given: Iterable[Setting], nodes: int) -> dict[str, Any]:
    """Return the arguments of `EmbeddedCluster` for these settings. Raises UsageError that names a wrong one."""
    from asyncgroup.broker import ListenerSecurity
    from asyncgroup.broker.metadata.config_repository import ConfigRepository
    from asyncgroup.broker.net.tls import connection_factory

    own = {**_KAFKA_SETTINGS, **_cluster_settings()}
    options: dict[str, Any] = {}
    security: dict[str, Any] = {}
    topics: dict[str, str] = {}
    seen: dict[str, Setting] = {}
    for one in given:
        place, known = (security, _SECURITY_SETTINGS) if one.name in _SECURITY_SETTINGS else (options, own)
        option, parse = known.get(one.name, (one.name, None))
        if option in seen:
            raise UsageError(f"{one}: sets the same option as {seen[option]}")
        seen[option] = one
        if parse is None:
            _check_known(one, own)
            topics[one.name] = one.value
            continue
        try:
            place[option] = parse(one.value)
        except ValueError as error:
            raise UsageError(f"{one} is not allowed: {error}") from None
    _check_sizes(options, seen, nodes)
    for name, value in topics.items():
        _name_flag(seen, partial(ConfigRepository.from_static, {name: value}))
    if topics:
        options["settings"] = topics
    if security:
        options["security"] = _name_flag(seen, lambda: ListenerSecurity(**security))
        _name_flag(seen, partial(connection_factory, options["security"]))  # the files can be read
    return options


def _check_known(one: Setting, own: Iterable[str]) -> None:
    """Raise UsageError unless it is a broker-wide default of topic settings (EmbeddedCluster's option `settings`)."""
    from asyncgroup.broker.metadata.config_repository import STATIC_SETTINGS

    if one.name in STATIC_SETTINGS:
        return
    if one.name in _FLAGS:
        raise UsageError(f"{one}: use {_FLAGS[one.name]}")
    names = sorted({*own, *_SECURITY_SETTINGS, *STATIC_SETTINGS})
    close = difflib.get_close_matches(one.name, names, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"the settings are {', '.join(names)}"
    # without the value: it may be a password, and its name misspelled
    raise UsageError(f"--set {one.name}: there is no such setting; {hint}")


def _check_sizes(options: dict[str, Any], seen: dict[str, Setting], nodes: int) -> None:
    if len(options.get("racks", range(nodes))) != nodes:
        raise UsageError(
            f"{seen['racks']} is not allowed: one rack for each of {counted(nodes, 'node')} (--nodes)"
        )
    if options.get("default_replication_factor", 1) > nodes:
        raise UsageError(
            f"{seen['default_replication_factor']} is not allowed: at most {nodes}, the number of nodes (--nodes)"
        )


def _name_flag(seen: dict[str, Setting], make: Callable[[], Any]) -> Any:
    """Return what `make` returns; a ConfigError becomes a UsageError that names the flag."""
    try:
        return make()
    except ConfigError as error:
        one = seen.get(error.key)
        if one is None:
            raise UsageError(f"--set: {error}") from error
        raise UsageError(f"{one} is not allowed: {error.allowed}") from error
