"""The settings of brokers and groups as they are now, and where each value comes from (Kafka's `DynamicBrokerConfig`,
`GroupConfigManager`).

Those that are the defaults of topics take effect: for all partitions (the default of the cluster), or for those that a
broker leads (its own). The others are kept and shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from asyncgroup.broker.broker_keys import (
    BROKER_KEYS,
    GROUP_KEYS,
    LOG_KEYS,
    OTHER_UNITS,
    READ_ONLY,
    SECURITY,
    SHARED,
)
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.topic_configs import (
    LogConfig,
    Synonym,
    check_value,
    normal_value,
)
from asyncgroup.broker.topic_keys import (
    DEFAULT_CONFIG,
    DYNAMIC_BROKER_CONFIG,
    DYNAMIC_DEFAULT_BROKER_CONFIG,
    STATIC_BROKER_CONFIG,
    TOPIC_KEYS,
)
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError

__all__ = ["BROKER", "GROUP", "STATIC_SETTINGS", "Settings"]

K = TypeVar("K", int, str)

_FORMS: Final = {
    "share.auto.offset.reset": re.compile("latest|earliest|by_duration:P[0-9A-Z.]+"),
    "share.isolation.level": re.compile("(?i:read_committed|read_uncommitted)"),
}

_MINUTE: Final = 60_000
_UNITS: Final = {
    "log.retention.hours": ("log.retention.ms", 60 * _MINUTE),
    "log.retention.minutes": ("log.retention.ms", _MINUTE),
    "log.roll.hours": ("log.roll.ms", 60 * _MINUTE),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 60 * _MINUTE),
}
"""Settings of other units that count where the one in ms is not given, with the ms in one of them."""

STATIC_SETTINGS: Final = frozenset({*LOG_KEYS, *_UNITS})
"""What a cluster can be started with."""

BROKER: Final = 4
GROUP: Final = 32
"""Kinds of resources (`ConfigResource.Type`)."""

_ELIGIBLE: Final = "min.insync.replicas"
"""Kafka 4 gives new clusters this setting explicitly, for eligible leader replicas (KIP-966)."""


class Settings:
    """`static` are those that the cluster was started with, of all nodes; `cluster` the dynamic ones of all nodes,
    `nodes` those of each, `groups` those of groups, all by Kafka's names.
    """

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        self.static = dict(static or {})
        self.cluster: dict[str, str] = {_ELIGIBLE: self.static.get(_ELIGIBLE, "1")}
        self.nodes: dict[int, dict[str, str]] = {}
        self.groups: dict[str, dict[str, str]] = {}

    def __repr__(self) -> str:
        return f"<Settings {len(self.cluster)} of the cluster, {len(self.nodes)} nodes, {len(self.groups)} groups>"

    @classmethod
    def at_start(cls, given: Mapping[str, str]) -> Settings:
        """Those of a cluster that was started with `given`; raises ConfigError for one that is not allowed."""
        static = {}
        for name, value in given.items():
            full, factor = _UNITS.get(name, (name, 1))
            rule = TOPIC_KEYS[LOG_KEYS[full]] if full in LOG_KEYS else None
            if rule is None:
                raise ConfigError(
                    "settings", name, f"those that are defaults of topics: {', '.join(sorted(LOG_KEYS))}"
                )
            if not isinstance(value, str):
                raise ConfigError(name, value, "text, as in Kafka's properties files")
            if problem := check_value(LOG_KEYS[full], rule, value):
                raise ConfigError(name, value, problem)
            if factor == 1 or full not in given:  # the finer unit counts
                static[full] = normal_value(rule, value if factor == 1 else str(max(-1, int(value) * factor)))
        return cls(static)

    # -- what they are ---------------------------------------------------------------------------------------

    def of(self, kind: int, name: str) -> dict[str, str]:
        """The dynamic settings of a resource; a broker's name is its id, "" stands for all."""
        if kind == GROUP:
            return self.groups.get(name, {})
        return self.nodes.get(int(name), {}) if name else self.cluster

    def put(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Replace the dynamic settings of a resource."""
        if kind == BROKER and not name:
            self.cluster = dict(configs)
        elif kind == BROKER:
            _put(self.nodes, int(name), configs)
        else:
            _put(self.groups, name, configs)

    def synonyms(self, name: str, node_id: int) -> list[Synonym]:
        """The values that a setting of a broker has, the one that counts first (KIP-226)."""
        places = (
            (self.nodes.get(node_id, {}), DYNAMIC_BROKER_CONFIG),
            (self.cluster, DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static, STATIC_BROKER_CONFIG),
        )
        found = [Synonym(name, place[name], source) for place, source in places if name in place]
        key = BROKER_KEYS.get(name)
        if key is not None and key.default is not None:
            found.append(Synonym(name, key.default, DEFAULT_CONFIG))
        elif found and name in OTHER_UNITS:
            found.append(Synonym(*OTHER_UNITS[name], DEFAULT_CONFIG))
        return found

    def topic_synonyms(self, name: str, node_id: int) -> list[Synonym]:
        """The values that a setting of topics has without being set there."""
        return self.synonyms(SHARED[name], node_id) if name in SHARED else []

    def topic_defaults(self, node_id: int) -> dict[str, str | None]:
        """Return the defaults of topics by topic config name; Kafka's own defaults are left out."""
        given = {**self.static, **self.cluster, **self.nodes.get(node_id, {})}
        return {LOG_KEYS[name]: value for name, value in given.items() if name in LOG_KEYS}

    def log_config(self, configs: Mapping[str, str | None], node_id: int) -> LogConfig:
        """What holds for partitions, led by a node, of a topic with these settings."""
        return LogConfig.of({**self.topic_defaults(node_id), **configs})

    def set_for_topics(self, names: Iterable[str]) -> bool:
        """Whether one of these settings of topics was given for all topics."""
        wanted = {SHARED[name] for name in names if name in SHARED}
        given = set(self.static).union(self.cluster, *self.nodes.values())
        return not wanted.isdisjoint(given)

    # -- rules -----------------------------------------------------------------------------------------------

    def check(
        self, kind: int, name: str, configs: Mapping[str, str | None], changed: Sequence[str]
    ) -> dict[str, str]:
        """The settings that a resource may be given, as they are kept; `changed` are those that differ from now.

        Raises Refused as Kafka does (`ConfigAdminManager`, `ControllerConfigurationValidator`).
        """
        if kind == GROUP:
            return _checked_group(configs)
        return _checked_broker(configs, changed, of_all=not name)


def _put(place: dict[K, dict[str, str]], key: K, configs: Mapping[str, str]) -> None:
    if configs:
        place[key] = dict(configs)
    else:
        place.pop(key, None)


def _checked_broker(
    configs: Mapping[str, str | None], changed: Sequence[str], *, of_all: bool
) -> dict[str, str]:
    given = [name for name in changed if name in configs]
    if fixed := sorted(READ_ONLY.intersection(given)):
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
        )
    if secured := sorted(SECURITY.intersection(given)):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"[{', '.join(secured)}]; in this broker they cannot change while it runs",
        )
    if listeners := [name for name in given if name.startswith("listener.name.")]:
        if of_all:
            text = "Cannot update these configs at default cluster level, broker id must be specified"
        else:
            text = "Settings of listeners cannot change while this broker runs"
        raise Refused(ErrorCode.INVALID_REQUEST, f"{text}: [{', '.join(listeners)}]")
    if _ELIGIBLE in changed and not of_all:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Broker-level {_ELIGIBLE} cannot be altered while ELR is enabled."
        )
    if of_all and _ELIGIBLE not in configs:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Cluster-level {_ELIGIBLE} cannot be removed while ELR is enabled."
        )
    kept = {}
    for name, value in configs.items():
        key = BROKER_KEYS.get(name)  # names that Kafka does not know are kept, for plugins
        if key is not None and (problem := check_value(LOG_KEYS.get(name, name), key.rule, value or "")):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"Invalid value {value} for configuration {name}: {problem}"
            )
        kept[name] = value or ""
    return kept


def _checked_group(configs: Mapping[str, str | None]) -> dict[str, str]:
    kept = {}
    for name, value in configs.items():
        key = GROUP_KEYS.get(name)
        if key is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        problem = check_value(name, key.rule, value or "")
        if not problem and key.highest is not None and int(value or "") > key.highest:
            problem = f"at most {key.highest}"
        if name in _FORMS and not _FORMS[name].fullmatch(value or ""):
            problem = (
                "read_committed or read_uncommitted"
                if "isolation" in name
                else "latest, earliest or by_duration:<ISO 8601>"
            )
        if problem:
            raise Refused(
                ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {problem}"
            )
        kept[name] = value or ""
    return kept
