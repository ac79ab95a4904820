"""Static and dynamic configs of brokers and groups, and the source of each value.

Kafka's `DynamicBrokerConfig` and `GroupConfigManager`. Broker configs that are topic defaults take effect:
cluster-wide ones for all partitions, a broker's own for the partitions that it leads. All others, except
`log.cleaner.backoff.ms`, are only stored and returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile
from typing import Final, TypeVar

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.log.config_values import InvalidValue, check_value, normal_value
from asyncgroup.broker.log.topic_config_keys import TOPIC_CONFIG_KEYS, ConfigSource
from asyncgroup.broker.log.topic_configs import ConfigSynonym, LogConfig
from asyncgroup.broker.metadata.broker_config_keys import (
    BROKER_CONFIG_KEYS,
    BROKER_TO_TOPIC,
    FIXED_CONFIGS,
    LISTENER_PREFIXED,
    READ_ONLY_CONFIGS,
    TOPIC_TO_BROKER,
    base_name,
    is_cluster_wide,
    synonym_names,
)
from asyncgroup.broker.metadata.group_config_keys import GROUP_CONFIG_KEYS
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError

__all__ = ["BROKER", "GROUP", "STATIC_SETTINGS", "ConfigRepository"]

K = TypeVar("K", int, str)

_FORMS: Final = {
    "share.auto.offset.reset": (
        re.compile("latest|earliest|by_duration:P[0-9A-Z.]+"),
        "must be latest, earliest or by_duration:<ISO 8601>",
    ),
    "share.isolation.level": (
        re.compile("(?i:read_committed|read_uncommitted)"),
        "String must be one of: read_committed, read_uncommitted",
    ),
}
"""Patterns of group configs, and what is allowed."""

_MINUTE: Final = 60_000
_UNITS: Final = {
    "log.retention.hours": ("log.retention.ms", 60 * _MINUTE),
    "log.retention.minutes": ("log.retention.ms", _MINUTE),
    "log.roll.hours": ("log.roll.ms", 60 * _MINUTE),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 60 * _MINUTE),
}
"""Configs in other units that apply if the one in ms is not set: the config in ms, and the ms per unit."""

STATIC_SETTINGS: Final = frozenset({*BROKER_TO_TOPIC, *_UNITS})
"""The configs that a cluster can be started with."""

BROKER: Final = 4
GROUP: Final = 32
"""Resource types (`ConfigResource.Type`)."""

_ELIGIBLE: Final = "min.insync.replicas"
"""Set explicitly in new clusters from Kafka 4.1 on, which have eligible leader replicas by default (KIP-966)."""


class ConfigRepository:
    """The configs of brokers and groups, by Kafka's names (Kafka's `ConfigRepository`)."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.static = dict(given or {})
        """The configs that the cluster was started with, for all nodes, as they were given."""
        self._static_defaults = _topic_defaults(self.static)
        self.cluster: dict[str, str] = {_ELIGIBLE: self.static.get(_ELIGIBLE, "1")}
        """The dynamic configs of all nodes."""
        self.nodes: dict[int, dict[str, str]] = {}
        """The dynamic configs of single nodes, by node id."""
        self.groups: dict[str, dict[str, str]] = {}
        """The dynamic configs of groups, by group id."""

    def __repr__(self) -> str:
        return (
            f"<ConfigRepository {len(self.cluster)} cluster-wide, {len(self.nodes)} nodes, "
            f"{len(self.groups)} groups>"
        )

    @classmethod
    def from_static(cls, given: Mapping[str, str]) -> ConfigRepository:
        """Return the configs of a cluster started with `given`. Raise ConfigError for one that is not allowed."""
        static = {}
        for name, value in given.items():
            full, _ = _UNITS.get(name, (name, 1))
            rule = TOPIC_CONFIG_KEYS[BROKER_TO_TOPIC[full]] if full in BROKER_TO_TOPIC else None
            if rule is None:
                raise ConfigError(
                    "settings",
                    name,
                    f"those that are defaults of topics: {', '.join(sorted(BROKER_TO_TOPIC))}",
                )
            if not isinstance(value, str):
                raise ConfigError(name, value, "a string, as in Kafka's properties files")
            if invalid := check_value(BROKER_TO_TOPIC[full], rule, value):
                raise ConfigError(name, value, invalid.problem)
            static[name] = normal_value(rule, value)
        return cls(static)

    # -- values ----------------------------------------------------------------------------------------------

    def of(self, kind: int, name: str) -> dict[str, str]:
        """Return the dynamic configs of a resource; a broker's name is its id, "" means all brokers."""
        if kind == GROUP:
            return self.groups.get(name, {})
        return self.nodes.get(int(name), {}) if name else self.cluster

    def put(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Replace the dynamic configs of a resource."""
        if kind == BROKER and not name:
            self.cluster = dict(configs)
        elif kind == BROKER:
            _put(self.nodes, int(name), configs)
        else:
            _put(self.groups, name, configs)

    def synonyms(
        self, name: str, node_id: int, static: Mapping[str, str] | None = None
    ) -> list[ConfigSynonym]:
        """Return the values of a broker config from all sources, the effective one first (KIP-226).

        `static` are the configs that the node was started with, with those of the cluster. As in Kafka, values of
        another unit or of the listener's base config count only after one of this name (`ConfigHelper.configSynonyms`).
        """
        names = synonym_names(name)
        defaults = {each: BROKER_CONFIG_KEYS[each].default for each in names if each in BROKER_CONFIG_KEYS}
        places: Sequence[tuple[Mapping[str, str | None], ConfigSource]] = (
            (self.nodes.get(node_id, {}), ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static if static is None else static, ConfigSource.STATIC_BROKER_CONFIG),
            (defaults, ConfigSource.DEFAULT_CONFIG),
        )
        found = [
            ConfigSynonym(each, place[each], source)
            for place, source in places
            for each in names
            if place.get(each) is not None
        ]
        return list(dropwhile(lambda synonym: synonym.name != name, found))

    def topic_synonyms(self, name: str, node_id: int) -> list[ConfigSynonym]:
        """Return the values that a topic config has by the configs of a broker, the effective one first."""
        return self.synonyms(TOPIC_TO_BROKER[name], node_id) if name in TOPIC_TO_BROKER else []

    def topic_defaults(self, node_id: int) -> dict[str, str | None]:
        """Return the topic defaults set in broker configs, by topic config name, without Kafka's own defaults."""
        altered = {**self.cluster, **self.nodes.get(node_id, {})}
        # dynamic configs take precedence
        return {**self._static_defaults, **_topic_defaults(altered)}

    def log_config(self, configs: Mapping[str, str | None], node_id: int) -> LogConfig:
        """Return the effective config of a partition led by this node, of a topic with these configs."""
        return LogConfig.of({**self.topic_defaults(node_id), **configs})

    def has_topic_default(self, names: Iterable[str]) -> bool:
        """Return whether a broker config sets a default for one of these topic configs."""
        names = set(names)
        wanted = {TOPIC_TO_BROKER[name] for name in names if name in TOPIC_TO_BROKER}
        altered = set(self.cluster).union(*self.nodes.values())
        return not wanted.isdisjoint(altered) or not self._static_defaults.keys().isdisjoint(names)

    # -- rules -----------------------------------------------------------------------------------------------

    def check(
        self, kind: int, name: str, configs: Mapping[str, str | None], changed: Sequence[str]
    ) -> dict[str, str]:
        """Validate a resource's new configs and return them as stored; `changed` names those that differ from now.

        Raise Refused as Kafka does (`ConfigAdminManager`, `ControllerConfigurationValidator`).
        """
        if kind == GROUP:
            return _checked_group(configs)
        return _checked_broker(configs, changed, of_all=not name)


def _topic_defaults(configs: Mapping[str, str]) -> dict[str, str | None]:
    """Return topic configs by the broker configs that are their defaults; of two units the more precise one wins."""
    found: dict[str, str | None] = {}
    # minutes before hours: the first of them stays
    for name, value in sorted(configs.items(), reverse=True):
        if name in _UNITS:
            full, factor = _UNITS[name]
            # -1, no limit, is the same in each unit
            found.setdefault(BROKER_TO_TOPIC[full], str(max(-1, int(value) * factor)))
    # those in ms take precedence
    return found | {
        BROKER_TO_TOPIC[name]: value for name, value in configs.items() if name in BROKER_TO_TOPIC
    }


def _put(place: dict[K, dict[str, str]], key: K, configs: Mapping[str, str]) -> None:
    if configs:
        place[key] = dict(configs)
    else:
        place.pop(key, None)


def _checked_broker(
    configs: Mapping[str, str | None], changed: Sequence[str], *, of_all: bool
) -> dict[str, str]:
    """Return the configs of a broker, or of all, as stored; raise Refused as `DynamicBrokerConfig.validateConfigs` does."""
    # what is removed is not checked
    given = sorted(name for name in changed if name in configs)
    _refuse("Cannot update these configs dynamically", [n for n in given if n in READ_ONLY_CONFIGS])
    _refuse(
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        [name for name in given if name in LISTENER_PREFIXED],
    )
    for name in given:
        base = base_name(name)
        key = BROKER_CONFIG_KEYS.get(base)  # unknown names are stored, as Kafka does for plugins
        value = configs[name] or ""
        if key is not None and (invalid := check_value(BROKER_TO_TOPIC.get(base, base), key.rule, value)):
            raise Refused(ErrorCode.INVALID_REQUEST, invalid.message(base))
    if of_all:
        _refuse(
            "Cannot update these configs at default cluster level, broker id must be specified",
            [name for name in given if not is_cluster_wide(name)],
        )
    _refuse("These configs cannot change while this broker runs", [n for n in given if n in FIXED_CONFIGS])
    if _ELIGIBLE in changed and not of_all:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Broker-level {_ELIGIBLE} cannot be altered while ELR is enabled."
        )
    if of_all and _ELIGIBLE not in configs:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Cluster-level {_ELIGIBLE} cannot be removed while ELR is enabled."
        )
    return {name: value or "" for name, value in configs.items()}


def _refuse(text: str, names: Sequence[str]) -> None:
    if names:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{text}: [{', '.join(names)}]")


def _checked_group(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return a group's configs as stored; raise Refused as `GroupConfig.validate` does."""
    kept = {}
    for name, value in configs.items():
        key = GROUP_CONFIG_KEYS.get(name)
        if key is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        invalid = check_value(name, key.rule, value or "") or _check_form(name, value or "")
        if invalid is not None:
            raise Refused(ErrorCode.INVALID_CONFIG, invalid.message(name))
        if problem := key.outside_limits(name, value or ""):
            raise Refused(ErrorCode.INVALID_CONFIG, problem)
        kept[name] = value or ""
    return kept


def _check_form(name: str, value: str) -> InvalidValue | None:
    pattern, allowed = _FORMS.get(name, (None, ""))
    return None if pattern is None or pattern.fullmatch(value) else InvalidValue(value, allowed)
