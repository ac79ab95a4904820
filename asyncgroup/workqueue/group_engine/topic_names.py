"""Names of the retry and dead letter topics of a group.

Kafka allows 249 of the characters a-z A-Z 0-9 . _ - in a topic's name, and any text in a group id: a name that is no legal
topic raises ConfigError when the queue is created, not when the first record fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.checks import is_legal_name
from asyncgroup.errors import ConfigError
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.group.topics.topics import Pattern
from asyncgroup.workqueue.topic_names import (
    DEAD_LETTER_ARGUMENT,
    DEAD_LETTER_NAMES,
    LEGAL_TOPIC,
    RETRY_ARGUMENT,
    RETRY_NAMES,
    NameFunction,
    TopicNames,
    check_copy_topics,
    check_topic_names,
)

__all__ = [
    "CopyTopics",
    "copy_topics",
    "dead_letter_topic_name",
    "other_sources",
    "retry_topic_name",
    "subscribed_topics",
]

_OF_ONE_GROUP: Final = ("pulsar", "kafka")
"""Presets whose names contain the group."""


class CopyTopics(NamedTuple):
    """The topics that a queue copies records to; None for one that it does not use."""

    retry: str | None
    dead_letter: str | None


def retry_topic_name(names: TopicNames, topics: Sequence[str] | Pattern, group_id: str) -> str:
    """Return the name of the retry topic of a queue. Of several topics, the first in sorted order names it, as in Pulsar.

    Raises ConfigError for a pattern, and if the name is no legal topic.
    """
    return _name(RETRY_NAMES, names, topics, group_id, RETRY_ARGUMENT)


def dead_letter_topic_name(names: TopicNames, topics: Sequence[str] | Pattern, group_id: str) -> str:
    """Return the name of the dead letter topic of a queue, as `retry_topic_name` does."""
    return _name(DEAD_LETTER_NAMES, names, topics, group_id, DEAD_LETTER_ARGUMENT)


def other_sources(names: TopicNames, topics: Sequence[str] | Pattern, group_id: str) -> list[str] | None:
    """Return the topics from which queues of other groups would derive the same name; None if the name has no group.

    `orders-eu-billing-RETRY` is that of topic `orders-eu` and group `billing`, and that of topic `orders` and group `eu-billing`.
    """
    if names not in _OF_ONE_GROUP or isinstance(topics, (re.Pattern, SubscriptionPattern)):
        return None
    source = topics if isinstance(topics, str) else min(topics)
    joined = f"{source}-{group_id}"
    cuts = [at for at, char in enumerate(joined) if char == "-" and 0 < at < len(joined) - 1]
    return [joined[:cut] for cut in cuts if cut != len(source) and is_legal_name(joined[:cut])]


def _name(
    presets: Mapping[str, NameFunction],
    names: TopicNames,
    topics: Sequence[str] | Pattern,
    group_id: str,
    argument: str,
) -> str:
    check_topic_names(names)
    if isinstance(topics, (re.Pattern, SubscriptionPattern)):
        allowed = f"a topic or several topics: a pattern does not give the name of another topic; set it by {argument}"
        raise ConfigError("topics", topics, allowed)
    sources = [topics] if isinstance(topics, str) else sorted(topics)
    if not sources:
        raise ConfigError("topics", topics, "at least one topic")
    name: object = (presets[names] if isinstance(names, str) else names)(sources[0], group_id)
    if not isinstance(name, str) or not is_legal_name(name):
        shown = f"{name[:249]}…" if isinstance(name, str) and len(name) > 249 else name
        length = f" (it has {len(name)})" if isinstance(name, str) else ""
        allowed = (
            f"a legal topic: 1 to 249{length} of the characters a-z A-Z 0-9 . _ -. The name was derived from topic "
            f"{sources[0]!r} and group {group_id[:249]!r}; choose another one by {argument}"
        )
        raise ConfigError("topic", shown, allowed)
    return name


def copy_topics(topics: Sequence[str] | Pattern, retry: str | None, dead_letter: str | None) -> CopyTopics:
    """Return the names of a queue's retry and dead letter topic. Raises ConfigError for a cycle of records.

    That is: if one of them is a source topic, if both are the same, or if the queue's pattern matches the dead letter topic.
    A pattern may match the retry topic, which the queue reads in any case.
    """
    for name in (retry, dead_letter):
        if name is not None and not is_legal_name(name):
            raise ConfigError("topic", name, LEGAL_TOPIC)
    sources: Sequence[str] = () if isinstance(topics, (re.Pattern, SubscriptionPattern)) else topics
    check_copy_topics([sources] if isinstance(sources, str) else sources, retry, dead_letter)
    if dead_letter is not None and _matches(topics, dead_letter):
        allowed = f"a dead letter topic that {topics!r} does not match; choose one by {DEAD_LETTER_ARGUMENT}"
        raise ConfigError("topic", dead_letter, allowed)
    return CopyTopics(retry, dead_letter)


def _matches(topics: Sequence[str] | Pattern, name: str) -> bool:
    if isinstance(
        topics, SubscriptionPattern
    ):  # the broker's syntax is RE2: what `re` does not know may match
        try:
            return re.fullmatch(topics.pattern, name) is not None
        except re.error:
            return False
    return isinstance(topics, re.Pattern) and topics.match(name) is not None


def subscribed_topics(topics: list[str] | Pattern, retry_topic: str | None) -> list[str] | Pattern:
    """Return the topics that the group of a queue reads: the queue's, and its retry topic."""
    if retry_topic is None:
        return topics
    if isinstance(topics, list):
        return sorted({*topics, retry_topic})
    escaped = re.escape(retry_topic)
    if isinstance(topics, SubscriptionPattern):
        return SubscriptionPattern(f"({topics.pattern})|{escaped}")
    return re.compile(rf"(?:{topics.pattern})|{escaped}\Z", topics.flags)
