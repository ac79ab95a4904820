"""Topic configs: validation by Kafka's rules, their parsed values, and their description (Kafka's `LogConfig`).

The configs in `LogConfig` below have an effect; all others are validated, stored and returned. As in Kafka, unknown
names are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.log.topic_config_keys import (
    HIDDEN_CONFIG_KEYS,
    INTERNAL_SEGMENT_BYTES,
    TOPIC_CONFIG_KEYS,
    TOPIC_DOCUMENTATION,
    ConfigKey,
    ConfigSource,
    ConfigType,
)
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "DEFAULTS",
    "ConfigEntry",
    "ConfigSynonym",
    "LogConfig",
    "check_configs",
    "check_value",
    "normal_value",
    "topic_configs",
]

_SPANS: Final = {ConfigType.INT: (-(2**31), 2**31 - 1), ConfigType.LONG: (-(2**63), 2**63 - 1)}

_THROTTLED = re.compile(r"\*|\d+:\d+(,\d+:\d+)*")


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


class ConfigSynonym(NamedTuple):
    """The value of a config from one source; lists of synonyms begin with the effective one (KIP-226)."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """A config as DescribeConfigs and CreateTopics return it."""

    name: str
    value: str | None
    source: int
    type: int
    synonyms: Sequence[ConfigSynonym] = ()
    documentation: str = ""
    read_only: bool = False
    sensitive: bool = False


class LogConfig(NamedTuple):
    """The topic configs that have an effect in this broker, parsed (Kafka's `LogConfig`); durations are in ms.

    `retention_ms` and `retention_bytes` are -1 for no limit; `compression` is None to keep the producer's codec.
    """

    max_message_bytes: int
    compact: bool
    delete: bool
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    min_insync_replicas: int
    compression: str | None
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float

    @property
    def max_segment_ms(self) -> int:
        """Age at which a segment is rolled; in compacted logs at most `max_compaction_lag_ms`."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @classmethod
    def of(cls, configs: Mapping[str, str | None]) -> LogConfig:
        """Parse configs that `check_configs` has passed; missing ones have Kafka's defaults."""

        def text(name: str) -> str:
            return (configs.get(name) or TOPIC_CONFIG_KEYS[name].default).strip()

        policies = _parts(text("cleanup.policy"))
        compression = text("compression.type")
        return cls(
            max_message_bytes=int(text("max.message.bytes")),
            compact="compact" in policies,
            delete="delete" in policies,
            log_append_time=text("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(text("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(text("message.timestamp.after.max.ms")),
            min_insync_replicas=int(text("min.insync.replicas")),
            compression=None if compression == "producer" else compression.replace("uncompressed", "none"),
            retention_ms=int(text("retention.ms")),
            retention_bytes=int(text("retention.bytes")),
            segment_bytes=int(configs.get(INTERNAL_SEGMENT_BYTES) or text("segment.bytes")),
            segment_ms=int(text("segment.ms")),
            delete_retention_ms=int(text("delete.retention.ms")),
            min_compaction_lag_ms=int(text("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(text("max.compaction.lag.ms")),
            min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        )


DEFAULTS: Final = LogConfig.of({})
"""Kafka's default configs."""


# -- rules -------------------------------------------------------------------------------------------------------


def check_configs(configs: Mapping[str, str | None]) -> None:
    """Raise Refused(INVALID_CONFIG) for an unknown name or a value that Kafka does not allow."""
    for name, value in configs.items():
        if value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"topic config {name} may not be null")
    for name, value in configs.items():
        key = TOPIC_CONFIG_KEYS.get(name) or HIDDEN_CONFIG_KEYS.get(name)
        if key is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if problem := check_value(name, key, value or ""):
            raise Refused(ErrorCode.INVALID_CONFIG, f"{name}={value!r}: {problem}")
    _check_lags(configs)


def check_value(name: str, key: ConfigKey, value: str) -> str:
    """Return what is allowed if a config may not have this value, else ""."""
    problem = _CHECKS[key.type](key, value)
    return _FURTHER[name](value) if not problem and name in _FURTHER else problem


def _check_lags(configs: Mapping[str, str | None]) -> None:
    shortest, longest = "min.compaction.lag.ms", "max.compaction.lag.ms"
    low, high = (int(configs.get(name) or TOPIC_CONFIG_KEYS[name].default) for name in (shortest, longest))
    if low > high:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{shortest}={low} is more than {longest}={high}")


def _check_number(key: ConfigKey, value: str) -> str:
    low, high = _SPANS[key.type]
    try:
        number = int(value.strip()) if "_" not in value else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        return f"a whole number from {low} to {high}"
    return f"at least {key.lowest:.0f}" if key.lowest is not None and number < key.lowest else ""


def _check_double(key: ConfigKey, value: str) -> str:
    try:
        return "" if key.lowest is None or 0 <= float(value) <= 1 else "from 0 to 1"
    except ValueError:
        return "a number"


def _check_boolean(_key: ConfigKey, value: str) -> str:
    return "" if value.strip().lower() in ("true", "false") else "true or false"


def _check_words(key: ConfigKey, value: str) -> str:
    found = _parts(value) if key.type == ConfigType.LIST else [value.strip()]
    if key.words is None or key.words.issuperset(found):
        return ""
    return f"one of {', '.join(sorted(key.words))}"


_CHECKS: Final[dict[int, Callable[[ConfigKey, str], str]]] = {
    ConfigType.BOOLEAN: _check_boolean,
    ConfigType.STRING: _check_words,
    ConfigType.INT: _check_number,
    ConfigType.LONG: _check_number,
    ConfigType.DOUBLE: _check_double,
    ConfigType.LIST: _check_words,
}


def _check_throttled(value: str) -> str:
    text = value.replace(" ", "")
    return "" if not text or _THROTTLED.fullmatch(text) else "* or partition:node,partition:node,…"


def _up_to(highest: int, *, not_zero: bool = False) -> Callable[[str], str]:
    def check(value: str) -> str:
        number = int(value)
        return f"at most {highest}, not 0" if number > highest or (not_zero and number == 0) else ""

    return check


def _check_remote(value: str) -> str:
    return "false, as this broker has no tiered storage" if value.strip().lower() == "true" else ""


_FURTHER: Final[dict[str, Callable[[str], str]]] = {
    "compression.gzip.level": _up_to(9, not_zero=True),
    "compression.lz4.level": _up_to(17),
    "compression.zstd.level": _up_to(22),
    "follower.replication.throttled.replicas": _check_throttled,
    "leader.replication.throttled.replicas": _check_throttled,
    "remote.storage.enable": _check_remote,
}


# -- description -------------------------------------------------------------------------------------------------


def topic_configs(
    configs: Mapping[str, str | None], synonyms: Callable[[str], list[ConfigSynonym]]
) -> list[ConfigEntry]:
    """Return all configs of a topic with its own `configs`; `synonyms` returns the values from other sources."""
    return [_shown(name, key, configs.get(name), synonyms(name)) for name, key in TOPIC_CONFIG_KEYS.items()]


def _shown(name: str, key: ConfigKey, own: str | None, synonyms: list[ConfigSynonym]) -> ConfigEntry:
    text = TOPIC_DOCUMENTATION[name]
    if own is None:
        first = synonyms[0] if synonyms else ConfigSynonym(name, key.default, ConfigSource.DEFAULT_CONFIG)
        value = normal_value(key, first.value or "")
        return ConfigEntry(name, value, first.source, key.type, synonyms, text)
    value = normal_value(key, own)
    own_first = [ConfigSynonym(name, value, ConfigSource.TOPIC_CONFIG), *synonyms]
    return ConfigEntry(name, value, ConfigSource.TOPIC_CONFIG, key.type, own_first, text)


def normal_value(key: ConfigKey, value: str) -> str:
    """Normalize a value as Kafka's parser does: without surrounding spaces, booleans in lower case."""
    if key.type == ConfigType.LIST:
        return ",".join(_parts(value))
    return value.strip().lower() if key.type == ConfigType.BOOLEAN else value.strip()
