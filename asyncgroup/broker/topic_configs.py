"""The settings of topics: checked by Kafka's rules, turned into values, and shown (`LogConfig`).

Those in `LogConfig` below have an effect; the others are checked, kept and shown. A name that Kafka does not know is
refused, as there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.topic_keys import (
    BOOLEAN,
    DEFAULT_CONFIG,
    DOUBLE,
    HIDDEN_KEYS,
    INT,
    INTERNAL_SEGMENT_BYTES,
    LIST,
    LONG,
    STRING,
    TOPIC_CONFIG,
    TOPIC_DOCUMENTATION,
    TOPIC_KEYS,
    TopicKey,
)
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "DEFAULTS",
    "ConfigValue",
    "LogConfig",
    "Synonym",
    "check_configs",
    "check_value",
    "normal_value",
    "topic_configs",
]

_SPANS: Final = {INT: (-(2**31), 2**31 - 1), LONG: (-(2**63), 2**63 - 1)}

_THROTTLED = re.compile(r"\*|\d+:\d+(,\d+:\d+)*")


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


class Synonym(NamedTuple):
    """One of the places that a value could come from, the one that counts first (KIP-226)."""

    name: str
    value: str | None
    source: int


class ConfigValue(NamedTuple):
    """One setting as it is shown to clients."""

    name: str
    value: str | None
    source: int
    type: int
    synonyms: Sequence[Synonym] = ()
    documentation: str = ""
    read_only: bool = False
    sensitive: bool = False


class LogConfig(NamedTuple):
    """The settings that this broker acts upon, as values; durations are in ms, -1 for no end (Kafka's `LogConfig`).

    `compression` is None for what producers chose.
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
        """After which time a segment ends: in a compacted log soon enough to be cleaned (`LogConfig.maxSegmentMs`)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @classmethod
    def of(cls, configs: Mapping[str, str | None]) -> LogConfig:
        """What settings that `check_configs` has passed mean, Kafka's defaults for those that are missing."""

        def text(name: str) -> str:
            return (configs.get(name) or TOPIC_KEYS[name].default).strip()

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
"""What holds where nothing is set."""


# -- rules -------------------------------------------------------------------------------------------------------


def check_configs(configs: Mapping[str, str | None]) -> None:
    """Raises Refused(INVALID_CONFIG) for a name that Kafka does not know, or a value that it does not allow."""
    for name, value in configs.items():
        if value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"topic config {name} may not be null")
    for name, value in configs.items():
        key = TOPIC_KEYS.get(name) or HIDDEN_KEYS.get(name)
        if key is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if problem := check_value(name, key, value or ""):
            raise Refused(ErrorCode.INVALID_CONFIG, f"{name}={value!r}: {problem}")
    _check_lags(configs)


def check_value(name: str, key: TopicKey, value: str) -> str:
    """Why a setting may not have a value, "" if it may."""
    problem = _CHECKS[key.type](key, value)
    return _FURTHER[name](value) if not problem and name in _FURTHER else problem


def _check_lags(configs: Mapping[str, str | None]) -> None:
    shortest, longest = "min.compaction.lag.ms", "max.compaction.lag.ms"
    low, high = (int(configs.get(name) or TOPIC_KEYS[name].default) for name in (shortest, longest))
    if low > high:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{shortest}={low} is more than {longest}={high}")


def _check_number(key: TopicKey, value: str) -> str:
    low, high = _SPANS[key.type]
    try:
        number = int(value.strip()) if "_" not in value else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        return "not a number of the setting's type"
    return f"at least {key.lowest:.0f}" if key.lowest is not None and number < key.lowest else ""


def _check_double(key: TopicKey, value: str) -> str:
    try:
        return "" if key.lowest is None or 0 <= float(value) <= 1 else "from 0 to 1"
    except ValueError:
        return "not a number"


def _check_boolean(_key: TopicKey, value: str) -> str:
    return "" if value.strip().lower() in ("true", "false") else "true or false"


def _check_words(key: TopicKey, value: str) -> str:
    found = _parts(value) if key.type == LIST else [value.strip()]
    if key.words is None or key.words.issuperset(found):
        return ""
    return f"one of {', '.join(sorted(key.words))}"


_CHECKS: Final[dict[int, Callable[[TopicKey, str], str]]] = {
    BOOLEAN: _check_boolean,
    STRING: _check_words,
    INT: _check_number,
    LONG: _check_number,
    DOUBLE: _check_double,
    LIST: _check_words,
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
    return "nothing is tiered here" if value.strip().lower() == "true" else ""


_FURTHER: Final[dict[str, Callable[[str], str]]] = {
    "compression.gzip.level": _up_to(9, not_zero=True),
    "compression.lz4.level": _up_to(17),
    "compression.zstd.level": _up_to(22),
    "follower.replication.throttled.replicas": _check_throttled,
    "leader.replication.throttled.replicas": _check_throttled,
    "remote.storage.enable": _check_remote,
}


# -- showing -----------------------------------------------------------------------------------------------------


def topic_configs(
    configs: Mapping[str, str | None], synonyms: Callable[[str], list[Synonym]]
) -> list[ConfigValue]:
    """All settings of a topic that was given `configs`, by name; `synonyms` gives what else a setting could be."""
    return [_shown(name, key, configs.get(name), synonyms(name)) for name, key in TOPIC_KEYS.items()]


def _shown(name: str, key: TopicKey, own: str | None, synonyms: list[Synonym]) -> ConfigValue:
    text = TOPIC_DOCUMENTATION[name]
    if own is None:
        first = synonyms[0] if synonyms else Synonym(name, key.default, DEFAULT_CONFIG)
        value = normal_value(key, first.value or "")
        return ConfigValue(name, value, first.source, key.type, synonyms, text)
    value = normal_value(key, own)
    own_first = [Synonym(name, value, TOPIC_CONFIG), *synonyms]
    return ConfigValue(name, value, TOPIC_CONFIG, key.type, own_first, text)


def normal_value(key: TopicKey, value: str) -> str:
    """As Kafka's parser gives a value back: without spaces, truths in small letters."""
    if key.type == LIST:
        return ",".join(_parts(value))
    return value.strip().lower() if key.type == BOOLEAN else value.strip()
