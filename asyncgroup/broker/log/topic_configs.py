"""Topic configs: validation by Kafka's rules, their parsed values, and their description (Kafka's `LogConfig`).

The configs in `LogConfig` below have an effect; all others are validated, stored and returned. As in Kafka, unknown
names are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.log.config_values import check_value, list_parts, normal_value
from asyncgroup.broker.log.topic_config_keys import (
    HIDDEN_CONFIG_KEYS,
    INTERNAL_SEGMENT_BYTES,
    TOPIC_CONFIG_KEYS,
    TOPIC_DOCUMENTATION,
    ConfigKey,
    ConfigSource,
)
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "DEFAULTS",
    "ConfigEntry",
    "ConfigSynonym",
    "LogConfig",
    "check_configs",
    "topic_configs",
]


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

        policies = list_parts(text("cleanup.policy"))
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
    """Raise Refused(INVALID_CONFIG) for an unknown name or a value that Kafka does not allow, with Kafka's message.

    Kafka refuses null first, then unknown names, then values (`LogConfig.validate`).
    """
    if nulls := [name for name, value in configs.items() if value is None]:
        raise _refused(f"Null value not supported for topic configs: {','.join(nulls)}")
    keys = {name: TOPIC_CONFIG_KEYS.get(name) or HIDDEN_CONFIG_KEYS.get(name) for name in configs}
    for name, key in keys.items():
        if key is None:
            raise _refused(f"Unknown topic config name: {name}")
    for name, value in configs.items():
        key = keys[name]
        assert key is not None
        if invalid := check_value(name, key, value or ""):
            raise _refused(invalid.message(name))
    _check_lags(configs)
    if (configs.get("remote.storage.enable") or "").strip().lower() == "true":
        raise _refused("remote.storage.enable must be false: this broker has no tiered storage")


def _refused(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_CONFIG, message)


def _check_lags(configs: Mapping[str, str | None]) -> None:
    shortest, longest = "min.compaction.lag.ms", "max.compaction.lag.ms"
    low, high = (int(configs.get(name) or TOPIC_CONFIG_KEYS[name].default) for name in (shortest, longest))
    if low > high:
        raise _refused(f"conflict topic config setting {shortest} ({low}) > {longest} ({high})")


# -- description -------------------------------------------------------------------------------------------------


def topic_configs(
    configs: Mapping[str, str | None],
    synonyms: Callable[[str], list[ConfigSynonym]],
    defaults: Mapping[str, str | None],
) -> list[ConfigEntry]:
    """Return all configs of a topic with its own `configs`; `synonyms` returns the values from other sources.

    `defaults` are the values of a topic that sets none. Some of them, such as a retention in hours, come from a source that is
    not a synonym.
    """
    return [
        _shown(name, key, configs.get(name), synonyms(name), defaults.get(name) or key.default)
        for name, key in TOPIC_CONFIG_KEYS.items()
    ]


def _shown(
    name: str, key: ConfigKey, own: str | None, synonyms: list[ConfigSynonym], default: str
) -> ConfigEntry:
    text = TOPIC_DOCUMENTATION[name]
    if own is None:
        first = synonyms[0] if synonyms else ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG)
        value = normal_value(key, first.value or "")
        return ConfigEntry(name, value, first.source, key.type, synonyms, text)
    value = normal_value(key, own)
    own_first = [ConfigSynonym(name, value, ConfigSource.TOPIC_CONFIG), *synonyms]
    return ConfigEntry(name, value, ConfigSource.TOPIC_CONFIG, key.type, own_first, text)
