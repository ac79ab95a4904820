"""What can be subscribed to: one topic, several, or a pattern; and what that means now."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from asyncgroup.checks import check_topic
from asyncgroup.cluster import Cluster
from asyncgroup.errors import ConfigError
from asyncgroup.group.known_topics import KnownTopics

__all__ = ["ResolvedTopics", "Subscription", "Topics", "check_topics", "resolve_topics"]

Topics: TypeAlias = "str | Iterable[str] | re.Pattern[str]"
"""What can be subscribed to; a pattern takes the topics whose name it matches from the start."""

_ALLOWED = "a topic, several topics, or a compiled pattern"
_PATTERN_CHARACTERS = frozenset("^$*+?[](){}|\\")
"""Characters of regular expressions that no topic's name has: aiokafka takes a pattern as a string."""


def check_topics(topics: object) -> list[str] | re.Pattern[str]:
    """The topics as a sorted list without repeats, or the pattern; raises ConfigError for none or for impossible ones."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise ConfigError("topics", topics, "a pattern of text, not of bytes")
        return topics
    if isinstance(topics, str):
        if not _PATTERN_CHARACTERS.isdisjoint(topics):
            raise ConfigError("topics", topics, f"{_ALLOWED}: re.compile(…)")
        return [check_topic(topics)]
    if not isinstance(topics, Iterable) or isinstance(topics, (bytes, bytearray)):
        raise ConfigError("topics", topics, _ALLOWED)
    names = sorted({check_topic(topic) for topic in topics})
    if not names:
        raise ConfigError("topics", topics, f"{_ALLOWED}; there is none")
    return names


class Subscription:
    """What one call of `consume()` or `run()` subscribes to; `change` gives it other topics in the middle."""

    def __init__(self, topics: Topics) -> None:
        self.wanted = check_topics(topics)

    def __repr__(self) -> str:
        return f"<Subscription {self.wanted!r}>"

    @property
    def names(self) -> list[str]:
        """The topics that were named; none for a pattern."""
        return [] if isinstance(self.wanted, re.Pattern) else self.wanted

    def change(self, topics: Topics) -> bool:
        """Subscribe to other topics; False if they are the same. Raises ConfigError."""
        wanted = check_topics(topics)
        if wanted == self.wanted:
            return False
        self.wanted = wanted
        return True


class ResolvedTopics(NamedTuple):
    """What a subscription meant when the member joined: `missing` topics (since when) were there once, and are gone."""

    existing: list[str]
    pattern: re.Pattern[str] | None = None
    missing: Mapping[str, float] = MappingProxyType({})

    @property
    def names(self) -> list[str]:
        """All topics whose metadata matters."""
        return [*self.existing, *self.missing]


async def resolve_topics(cluster: Cluster, subscription: Subscription, known: KnownTopics) -> ResolvedTopics:
    """What to join with: every named topic, or what the pattern matches now (perhaps nothing).

    A named topic must exist. One that was there before, and is gone, is left out until it comes back, so that the
    others go on; it is noted as missing in `known`. Raises BrokerError for a topic that never existed or may not be
    read, TransportError.
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


async def _missing(cluster: Cluster, names: list[str]) -> list[str]:
    """Those that do not exist now, after a second look."""
    if all(name in cluster.view.topics for name in names):
        return []
    cluster.track(names)
    try:
        await cluster.refresh()
    finally:
        cluster.untrack(names)
    return [name for name in names if name not in cluster.view.topics]
