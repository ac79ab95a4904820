"""What can be subscribed to: one topic, several, or a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from asyncgroup.checks import check_topic
from asyncgroup.cluster import Cluster
from asyncgroup.errors import ConfigError

__all__ = ["Topics", "check_topics", "resolve_topics"]

Topics: TypeAlias = "str | Iterable[str] | re.Pattern[str]"
"""What can be subscribed to; a pattern takes the topics whose name it matches from the start."""

_RULE = "a topic, several topics, or a compiled pattern"


def check_topics(topics: object) -> list[str] | re.Pattern[str]:
    """The topics as a sorted list without repeats, or the pattern; raises ConfigError for none or for impossible ones."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise ConfigError("topics", topics, "a pattern of text, not of bytes")
        return topics
    if isinstance(topics, str):
        return [check_topic(topics)]
    if not isinstance(topics, Iterable) or isinstance(topics, (bytes, bytearray)):
        raise ConfigError("topics", topics, _RULE)
    names = sorted({check_topic(topic) for topic in topics})
    if not names:
        raise ConfigError("topics", topics, f"{_RULE}; there is none")
    return names


async def resolve_topics(cluster: Cluster, topics: list[str] | re.Pattern[str]) -> list[str]:
    """The names that a subscription means now; every topic must exist.

    A pattern takes the topics that it matches from the start of their name, internal ones left out; it may match none.
    Raises BrokerError for a topic that does not exist or may not be read.
    """
    if isinstance(topics, re.Pattern):
        found = await cluster.all_topics()
        return sorted(name for name, info in found.items() if topics.match(name) and not info.is_internal)
    await cluster.topics(topics)
    return topics
