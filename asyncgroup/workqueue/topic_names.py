"""How retry and dead letter topics are named: by a preset, or by a function of topic and subscription."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from asyncgroup.errors import ConfigError

__all__ = [
    "DEAD_LETTER_ARGUMENT",
    "DEAD_LETTER_NAMES",
    "LEGAL_TOPIC",
    "RETRY_ARGUMENT",
    "RETRY_NAMES",
    "NameFunction",
    "TopicNames",
    "check_copy_topics",
    "check_topic_names",
]

LEGAL_TOPIC: Final = "1 to 249 of the characters a-z A-Z 0-9 . _ -, and neither '.' nor '..'"
"""The names that Kafka allows."""

RETRY_ARGUMENT: Final = "RetryTopic(topic=…)"
"""What sets the name of a retry topic, in errors."""
DEAD_LETTER_ARGUMENT: Final = "DeadLetter(topic=…)"
"""The same of a dead letter topic."""

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


def check_copy_topics(sources: Collection[str], retry: str | None, dead_letter: str | None) -> None:
    """Raise ConfigError if the retry or the dead letter topic is one of the `sources`, or if both are the same."""
    for name, argument in ((retry, RETRY_ARGUMENT), (dead_letter, DEAD_LETTER_ARGUMENT)):
        if name is not None and name in sources:
            allowed = f"another topic than those that the queue reads; choose one by {argument}"
            raise ConfigError("topic", name, allowed)
    if retry is not None and retry == dead_letter:
        allowed = f"another topic than the retry topic; choose one by {DEAD_LETTER_ARGUMENT}"
        raise ConfigError("topic", dead_letter, allowed)
