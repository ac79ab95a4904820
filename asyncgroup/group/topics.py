"""Subscriptions: topics by name or by pattern, and their resolution to existing topics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from asyncgroup.checks import check_topic
from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import ConfigError
from asyncgroup.group.known_topics import KnownTopics

__all__ = ["ResolvedTopics", "Subscription", "Topics", "check_topics", "resolve_topics"]

Topics: TypeAlias = "str | Iterable[str] | re.Pattern[str]"
"""A topic, several topics, or a pattern, which selects topics by `re.Pattern.match` on their names."""

_ALLOWED = "a topic, several topics, or a compiled pattern"
_PATTERN_CHARACTERS = frozenset("^$*+?[](){}|\\")
"""Characters of regular expressions that topic names cannot have: aiokafka takes patterns as strings."""


def check_topics(topics: object) -> list[str] | re.Pattern[str]:
    """Return the topics as a sorted list without repeats, or the pattern. Raises ConfigError if none or invalid."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise ConfigError("topics", topics, "a pattern of str, not of bytes")
        return topics
    if isinstance(topics, str):
        if not _PATTERN_CHARACTERS.isdisjoint(topics):
            raise ConfigError("topics", topics, f"{_ALLOWED}: re.compile(…)")
        return [check_topic(topics)]
    if not isinstance(topics, Iterable) or isinstance(topics, (bytes, bytearray)):
        raise ConfigError("topics", topics, _ALLOWED)
    names = sorted({check_topic(topic) for topic in topics})
    if not names:
        raise ConfigError("topics", topics, f"{_ALLOWED}; it is empty")
    return names


class Subscription:
    """The subscription of one call of `consume()` or `run()`; `change` replaces its topics."""

    def __init__(self, topics: Topics) -> None:
        self.wanted = check_topics(topics)

    def __repr__(self) -> str:
        return f"<Subscription {self.wanted!r}>"

    @property
    def names(self) -> list[str]:
        """The topics subscribed to by name; empty for a pattern."""
        return [] if isinstance(self.wanted, re.Pattern) else self.wanted

    def change(self, topics: Topics) -> bool:
        """Change the topics; False if they are the same. Raises ConfigError."""
        wanted = check_topics(topics)
        if wanted == self.wanted:
            return False
        self.wanted = wanted
        return True


class ResolvedTopics(NamedTuple):
    """The topics of a subscription when the member joined."""

    existing: list[str]
    pattern: re.Pattern[str] | None = None
    """None for a subscription by name."""
    missing: Mapping[str, float] = MappingProxyType({})
    """Topics that no longer exist, with the loop time at which each was first missing."""

    @property
    def names(self) -> list[str]:
        """All topics whose metadata is needed."""
        return [*self.existing, *self.missing]


async def resolve_topics(
    cluster: ClusterClient, subscription: Subscription, known: KnownTopics
) -> ResolvedTopics:
    """Return the topics to join with: every topic subscribed to by name, or those that the pattern matches now.

    A topic subscribed to by name must exist. If it existed before, it is left out until it exists again, so that the
    others continue, and recorded as missing in `known`. Raises BrokerError for a topic that never existed or is not
    authorized, TransportError.
    """
    wanted = subscription.wanted
    if isinstance(wanted, re.Pattern):
        found = await cluster.all_topics()
        chosen = [i for name, i in found.items() if wanted.match(name) and not i.is_internal]
        known.update(chosen, are_new=known.mark_matched(wanted))
        return ResolvedTopics(sorted(info.name for info in chosen), wanted)
    absent = await _missing(cluster, [name for name in wanted if name in known])
    there = [name for name in wanted if name not in absent]
    known.update((await cluster.topics(there)).values())
    for name in absent:
        known.mark_missing(name, asyncio.get_running_loop().time())
    return ResolvedTopics(there, None, {name: known.missing[name] for name in absent})


async def _missing(cluster: ClusterClient, names: list[str]) -> list[str]:
    """Return those that do not exist, also by fresh metadata."""
    if all(name in cluster.view.topics for name in names):
        return []
    with cluster.tracking(names):
        await cluster.refresh()
    return [name for name in names if name not in cluster.view.topics]
