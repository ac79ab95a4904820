"""The settings of topics that are known here: those that clients ask for, with Kafka's defaults.

Only `max.message.bytes` has an effect; the others are kept and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.log import DEFAULT_MAX_BATCH_BYTES
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "BOOLEAN",
    "DEFAULT_CONFIG",
    "INT",
    "LIST",
    "LONG",
    "STRING",
    "TOPIC_CONFIG",
    "TOPIC_DEFAULTS",
    "ConfigValue",
    "check_configs",
    "topic_configs",
]

BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
LONG: Final = 5
LIST: Final = 7
"""Types of values (`DescribeConfigsResponse.ConfigType`)."""

TOPIC_CONFIG: Final = 1
DEFAULT_CONFIG: Final = 5
"""Where a value comes from (`DescribeConfigsResponse.ConfigSource`)."""

TOPIC_DEFAULTS: Final[dict[str, tuple[str, int]]] = {
    "cleanup.policy": ("delete", LIST),
    "compression.type": ("producer", STRING),
    "delete.retention.ms": ("86400000", LONG),
    "max.message.bytes": (str(DEFAULT_MAX_BATCH_BYTES), INT),
    "message.timestamp.type": ("CreateTime", STRING),
    "min.insync.replicas": ("1", INT),
    "retention.bytes": ("-1", LONG),
    "retention.ms": ("604800000", LONG),
    "segment.bytes": ("1073741824", INT),
    "unclean.leader.election.enable": ("false", BOOLEAN),
}


class ConfigValue(NamedTuple):
    """One setting of a topic as it is shown to clients."""

    name: str
    value: str
    source: int
    type: int


def check_configs(configs: Mapping[str, str | None]) -> None:
    """Raises Refused(INVALID_CONFIG) for numbers that are none; names that are not known here are kept as
    they are.
    """
    for name, value in configs.items():
        kind = TOPIC_DEFAULTS.get(name, ("", STRING))[1]
        if value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"null value not supported for topic configs: {name}")
        if kind in (INT, LONG) and not value.removeprefix("-").isdigit():
            raise Refused(ErrorCode.INVALID_CONFIG, f"{name}={value!r} is not a number")


def topic_configs(configs: Mapping[str, str | None]) -> list[ConfigValue]:
    """All settings of a topic that was created with `configs`, by name."""
    found = []
    for name in sorted({*TOPIC_DEFAULTS, *configs}):
        default, kind = TOPIC_DEFAULTS.get(name, ("", STRING))
        source = TOPIC_CONFIG if name in configs else DEFAULT_CONFIG
        found.append(ConfigValue(name, configs.get(name, default) or "", source, kind))
    return found
