"""`asyncgroup broker --set NAME=VALUE`: options of the embedded cluster, by Kafka's setting names or our option names."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, Final, NamedTuple

from asyncgroup.counting import counted
from asyncgroup.errors import ConfigError, UsageError

__all__ = ["Setting", "add_set_option", "cluster_options"]

Parse = Callable[[str], Any]

_SECRET: Final = frozenset({"users", "key_password"})


class Setting(NamedTuple):
    """One `--set NAME=VALUE`."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"--set {self.name}={'…' if self.name in _SECRET else self.value}"


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --set."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        dest="settings",
        metavar="NAME=VALUE",
        help="a broker setting by Kafka's name, such as num.partitions=6, log.retention.ms=60000 or "
        "group.initial.rebalance.delay.ms=3000, or an option of EmbeddedCluster, such as racks=a,b,c (one for each "
        "node), users=alice:secret,bob:other (SASL: PLAIN and SCRAM) or cert_file=broker.pem (TLS); can be repeated. "
        "Other users of this machine can see arguments, including passwords",
    )


def _setting(text: str) -> Setting:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # without the text, which may be a password
        raise argparse.ArgumentTypeError("expected NAME=VALUE, such as num.partitions=6")
    return Setting(name.strip(), value.strip())


# -- values --------------------------------------------------------------------------------------------------------


def _integer(least: int) -> Parse:
    def parse(text: str) -> int:
        if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal()) or int(text) < least:
            raise ValueError(f"a whole number, {least} or more")
        return int(text)

    return parse


def _scaled(unit: float, what: str, *, not_zero: bool = False) -> Parse:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e15 or (not_zero and not number):
            raise ValueError(f"a number of {what}, {'more than 0' if not_zero else '0 or more'}")
        return number * unit

    return parse


_MS: Final = _scaled(0.001, "milliseconds")
_INTERVAL: Final = _scaled(0.001, "milliseconds", not_zero=True)
_SECONDS: Final = _scaled(1.0, "seconds")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _idle_time(text: str) -> float | None:
    """Parse milliseconds above 0, or -1 for no limit; returns seconds, or None."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number != -1 and not 0 < number < 1e15:
        raise ValueError("milliseconds, more than 0, or -1 for never")
    return None if number == -1 else number / 1000


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError("names separated by commas")
    return names


def _racks(text: str) -> list[str | None]:
    return [name.strip() or None for name in text.split(",")]


def _users(text: str) -> dict[str, str]:
    users = {}
    for user in text.split(","):
        name, colon, password = user.partition(":")
        if not (name and colon and password):
            raise ValueError("NAME:PASSWORD, several separated by commas")
        users[name] = password
    return users


_KAFKA_SETTINGS: Final[dict[str, tuple[str, Parse]]] = {
    "auto.create.topics.enable": ("auto_create_topics", _boolean),
    "broker.rack": ("racks", _racks),
    "connections.max.idle.ms": ("connections_max_idle", _idle_time),
    "default.replication.factor": ("default_replication_factor", _integer(1)),
    "group.consumer.assignment.interval.ms": ("group_consumer_assignment_interval", _MS),
    "group.consumer.heartbeat.interval.ms": ("group_consumer_heartbeat_interval", _INTERVAL),
    "group.consumer.max.size": ("group_consumer_max_size", _integer(1)),
    "group.consumer.migration.policy": ("group_consumer_migration_policy", str.lower),
    "group.consumer.session.timeout.ms": ("group_consumer_session_timeout", _INTERVAL),
    "group.version": ("group_version", _integer(0)),
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay", _MS),
    "group.max.session.timeout.ms": ("group_max_session_timeout", _MS),
    "group.max.size": ("group_max_size", _integer(1)),
    "group.min.session.timeout.ms": ("group_min_session_timeout", _MS),
    "log.retention.check.interval.ms": ("retention_check_interval", _INTERVAL),
    "num.partitions": ("default_partitions", _integer(1)),
    "offsets.retention.check.interval.ms": ("offsets_retention_check_interval", _INTERVAL),
    "offsets.retention.minutes": ("offsets_retention", _scaled(60.0, "minutes")),
    "queued.max.request.bytes": ("queued_max_request_bytes", _integer(1)),
    "transaction.version": ("transaction_version", _integer(0)),
}
"""For each of Kafka's settings, the option of EmbeddedCluster and the parser of its value."""

_SECURITY_SETTINGS: Final[dict[str, tuple[str, Parse]]] = {
    "cert_file": ("cert_file", str),
    "client_ca_file": ("client_ca_file", str),
    "connections.max.reauth.ms": ("max_reauth", _MS),
    "key_file": ("key_file", str),
    "key_password": ("key_password", str),
    "max_reauth": ("max_reauth", _SECONDS),
    "mechanisms": ("mechanisms", _names),
    "sasl.enabled.mechanisms": ("mechanisms", _names),
    "users": ("users", _users),
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
    "default_partitions": _integer(1),
    "default_replication_factor": _integer(1),
    "group_consumer_max_size": _integer(1),
    "group_consumer_migration_policy": str.lower,
    "group_max_size": _integer(1),
    "group_version": _integer(0),
    "racks": _racks,
    "seed": _integer(-(2**63)),
    "start_time": _integer(0),
    "transaction_version": _integer(0),
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
        parse = _UNTYPED_OPTIONS.get(name) or {bool: _boolean, int: _integer(0), float: _SECONDS}.get(kind)
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
