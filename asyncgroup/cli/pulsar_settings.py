"""`asyncgroup broker --pulsar --set NAME=VALUE`: options of the embedded Pulsar, by the names of its broker.conf or our option names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from asyncgroup.cli.setting_values import (
    MILLISECONDS,
    SECONDS,
    Parse,
    Setting,
    boolean,
    integer,
    names,
    pairs,
    scaled,
)
from asyncgroup.errors import ConfigError, UsageError

__all__ = ["pulsar_settings"]

_OTHERS: Final = frozenset(
    {
        "admin",
        "admin_port",
        "advertised_host",
        "brokers",
        "history_bytes",
        "history_limit",
        "host",
        "hosts",
        "port",
        "topics",
    }
)
"""Options that have a flag of their own, or none."""


def _limit(parse: Parse) -> Parse:
    """Return a parser that takes -1 as well, which means without limit."""
    return lambda text: None if text == "-1" else parse(text)


_PULSARS: Final[dict[str, tuple[str, Parse]]] = {
    "activeConsumerFailoverDelayTimeMillis": ("failover_delay", MILLISECONDS),
    "allowAutoTopicCreation": ("auto_create_topics", boolean),
    "authenticationRefreshCheckSeconds": ("credential_interval", scaled(1.0, "seconds", not_zero=True)),
    "brokerDeduplicationEnabled": ("deduplication", boolean),
    "defaultRetentionSizeInMB": ("retention_size", _limit(lambda text: integer(0)(text) << 20)),
    "defaultRetentionTimeInMinutes": ("retention_time", _limit(scaled(60.0, "minutes"))),
    "maxMessageSize": ("max_message_size", integer(1)),
}
"""For each of Pulsar's settings, the option of EmbeddedPulsar and the parser of its value."""

_UNTYPED: Final[dict[str, Parse]] = {
    "namespaces": names,
    "retention_size": integer(0),
    "retention_time": SECONDS,
    "tokens": pairs("TOKEN", "ROLE", at_last=True),
    "users": pairs("NAME", "PASSWORD"),
}
"""Parsers of the options whose default value does not show their type."""


def _known() -> dict[str, tuple[str, Parse]]:
    from asyncgroup.pulsar_broker import PulsarOptions

    found = dict(_PULSARS)
    for option in fields(PulsarOptions):
        name, kind = option.name, type(option.default)
        if name not in _OTHERS:
            found[name] = name, _UNTYPED.get(name) or {bool: boolean, int: integer(0), float: SECONDS}[kind]
    return found


def pulsar_settings(given: Iterable[Setting]) -> dict[str, Any]:
    """Return the arguments of `PulsarOptions` for these settings. Raises UsageError that names a wrong one."""
    from asyncgroup.pulsar_broker import PulsarOptions

    known = _known()
    options: dict[str, Any] = {}
    seen: dict[str, Setting] = {}
    for one in given:
        if one.name not in known:
            raise _unknown(one, known)
        option, parse = known[one.name]
        if option in seen:
            raise UsageError(f"{one}: sets the same option as {seen[option]}")
        seen[option] = one
        try:
            options[option] = parse(one.value)
            PulsarOptions(**{option: options[option]})
        except ConfigError as error:
            raise UsageError(f"{one} is not allowed: {error.allowed}") from error
        except ValueError as error:
            raise UsageError(f"{one} is not allowed: {error}") from None
    return options


def _unknown(one: Setting, known: Iterable[str]) -> UsageError:
    close = difflib.get_close_matches(one.name, known, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"the settings are {', '.join(sorted(known))}"
    # without the value: it may be a password, and its name misspelled
    return UsageError(f"--set {one.name}: an embedded Pulsar has no such setting; {hint}")
