"""How retry and dead letter topics are named: by a preset, or by a function of topic and subscription."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from asyncgroup.errors import ConfigError

__all__ = ["DEAD_LETTER_NAMES", "RETRY_NAMES", "NameFunction", "TopicNames", "check_topic_names"]

NameFunction: TypeAlias = Callable[[str, str], str]
"""Returns the name of a retry or dead letter topic for (topic, group_id)."""

_Preset: TypeAlias = Literal["pulsar", "kafka", "spring"]

TopicNames: TypeAlias = _Preset | NameFunction
"""How retry and dead letter topics are named, for the topic `orders` and the group `billing`:

| | retry topic | dead letter topic |
|---|---|---|
| `pulsar` | `orders-billing-RETRY` | `orders-billing-DLQ` |
| `kafka` (the prefix of KIP-1191) | `retry.orders-billing` | `dlq.orders-billing` |
| `spring` (Spring Kafka; for all groups of the topic) | `orders-retry` | `orders-dlt` |

or a function (topic, group_id) -> name.
"""

RETRY_NAMES: Final[Mapping[str, NameFunction]] = MappingProxyType(
    {
        "pulsar": lambda topic, group_id: f"{topic}-{group_id}-RETRY",
        "kafka": lambda topic, group_id: f"retry.{topic}-{group_id}",
        "spring": lambda topic, _group_id: f"{topic}-retry",
    }
)
DEAD_LETTER_NAMES: Final[Mapping[str, NameFunction]] = MappingProxyType(
    {
        "pulsar": lambda topic, group_id: f"{topic}-{group_id}-DLQ",
        "kafka": lambda topic, group_id: f"dlq.{topic}-{group_id}",
        "spring": lambda topic, _group_id: f"{topic}-dlt",
    }
)


def check_topic_names(names: Any) -> None:
    """Raise ConfigError unless `names` is a preset or a function."""
    if not (isinstance(names, str) and names in RETRY_NAMES) and not callable(names):
        presets = ", ".join(get_args(_Preset))
        raise ConfigError("names", names, f"one of {presets}, or a function (topic, group_id) -> name")
