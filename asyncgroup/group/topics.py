"""Subscriptions: topics by name or by pattern, their resolution, the topics seen so far, and watching them.

During a session the `watch_…` functions look for changes that require a new assignment or subscription.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.checks import check_topic
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ConfigError,
    ErrorCode,
    PartitionsChanged,
    SessionEnd,
    TopicsChanged,
)
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "KnownTopics",
    "ResolvedTopics",
    "Subscription",
    "Topics",
    "check_topics",
    "resolve_topics",
    "watch_missing",
    "watch_partitions",
    "watch_pattern",
    "watch_topics",
]


class KnownTopics:
    """The topics seen since this group object was created.

    A partition that did not exist when its topic was first seen was created while the group was running, and none of
    its records may be skipped: it is read from the log start with any `auto_offset_reset` (Java skips records
    there, KAFKA-12478). The same applies to a topic created after its pattern was first matched, and to one that was
    deleted and recreated. A member that joins later cannot know this, and applies `auto_offset_reset`.
    """

    def __init__(self) -> None:
        self._first_counts: dict[str, int] = {}  # partitions when first seen; 0 if created since
        self._ids: dict[str, UUID] = {}
        self._missing: dict[str, float] = {}  # deleted topics, with the loop time when first missing
        self._patterns: set[tuple[str, int]] = set()  # (pattern, flags) matched before

    def __contains__(self, topic: object) -> bool:
        """Whether the topic was ever seen."""
        return topic in self._first_counts

    def update(self, topics: Iterable[TopicInfo], *, are_new: bool = False) -> None:
        """Record topics that exist now. `are_new`: those never seen before did not exist at an earlier lookup."""
        for info in topics:
            before = self._ids.get(info.name)
            recreated = info.name in self._missing or (
                before is not None and m.NO_UUID not in (before, info.topic_id) and before != info.topic_id
            )
            if recreated or (are_new and info.name not in self._first_counts):
                self._first_counts[info.name] = 0
            else:
                self._first_counts.setdefault(info.name, len(info.partitions))
            self._ids[info.name] = info.topic_id
            self._missing.pop(info.name, None)

    def mark_matched(self, pattern: re.Pattern[str]) -> bool:
        """Record that all topics are matched with the pattern; True if they were before, so that unseen ones are new."""
        key = (pattern.pattern, pattern.flags)
        known = key in self._patterns
        self._patterns.add(key)
        return known

    def mark_missing(self, topic: str, now: float) -> None:
        """Record that a known topic no longer exists."""
        self._missing.setdefault(topic, now)

    @property
    def missing(self) -> Mapping[str, float]:
        """The known topics that no longer exist, with the loop time at which each was first missing."""
        return self._missing

    def forget_missing(self, topics: Iterable[str]) -> None:
        """Forget missing topics: a later subscription treats them as never seen."""
        for topic in topics:
            if self._missing.pop(topic, None) is not None:
                self._first_counts.pop(topic, None)
                self._ids.pop(topic, None)

    def was_added(self, tp: TopicPartition) -> bool:
        """Whether the partition was created after its topic was first seen."""
        return tp.partition >= self._first_counts.get(tp.topic, tp.partition + 1)


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
        self.unknown_since: float | None = None
        """Loop time of the first unknown-topic error since a session started; None if there was none."""

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
    wanted: list[str] | re.Pattern[str]
    """The subscription at that time."""
    missing: Mapping[str, float] = MappingProxyType({})
    """Topics that no longer exist, with the loop time at which each was first missing."""

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern; None for a subscription by name."""
        return self.wanted if isinstance(self.wanted, re.Pattern) else None

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
        matched = sorted(_matching(wanted, found))
        known.update([found[name] for name in matched], are_new=known.mark_matched(wanted))
        return ResolvedTopics(matched, wanted)
    absent = await _missing(cluster, [name for name in wanted if name in known])
    there = [name for name in wanted if name not in absent]
    known.update((await cluster.topics(there)).values())
    for name in absent:
        known.mark_missing(name, asyncio.get_running_loop().time())
    return ResolvedTopics(there, wanted, {name: known.missing[name] for name in absent})


async def _missing(cluster: ClusterClient, names: list[str]) -> list[str]:
    """Return those that do not exist, also by fresh metadata."""
    if all(name in cluster.view.topics for name in names):
        return []
    with cluster.tracking(names):
        await cluster.refresh()
    return [name for name in names if name not in cluster.view.topics]


# --- watching during a session ----------------------------------------------------------------------------------------

OnChange = Callable[[SessionEnd], None]


async def watch_partitions(
    cluster: ClusterClient, partition_counts: Mapping[str, int], on_change: OnChange
) -> None:
    """Compare each metadata refresh with the partition counts of the assignment; call `on_change` at a difference.

    A topic that seems deleted, or to have fewer partitions, is looked up a second time. Only the leader watches, the
    topics of all members, as in sarama (`loopCheckPartitionNumbers`): its rejoin triggers a rebalance. The topics must
    be tracked.
    """
    await _ensure_known(cluster, partition_counts)
    while True:
        if any(
            (now := _count(cluster, topic)) is not None and now < partition_counts[topic]
            for topic in partition_counts
        ):
            await _refresh_again(cluster)
        for topic, count in partition_counts.items():
            now = _count(cluster, topic)
            if now is not None and now != count:
                on_change(
                    PartitionsChanged(
                        f"topic {topic!r} has {now} partitions, the assignment was made for {count}"
                    )
                )
                return
        await cluster.wait_updated()


def _count(cluster: ClusterClient, topic: str) -> int | None:
    """Return the partition count of a topic: 0 if it does not exist, None if it is unknown now."""
    info = cluster.view.topics.get(topic)
    if info is None:
        return 0
    return None if info.error_code else len(info.partitions)


async def _ensure_known(cluster: ClusterClient, partition_counts: Mapping[str, int]) -> None:
    """Refresh the metadata until it succeeds if a topic is missing from it.

    Topics of other members were tracked during the assignment and are tracked again now. A refresh in between, possibly
    by another client of a shared cluster, drops them from the metadata, which is no reason for a rebalance.
    """
    backoff = cluster.backoff()
    while any(count and topic not in cluster.view.topics for topic, count in partition_counts.items()):
        try:
            await cluster.refresh()
        except AsyncGroupError:
            await asyncio.sleep(backoff.next())
        else:
            return


async def watch_topics(cluster: ClusterClient, ids: Mapping[str, UUID], on_change: OnChange) -> None:
    """Watch the member's own topics; call `on_change` when one is deleted, or recreated with another id.

    Every member does this, not only the leader, which may notice late if it owns no partition of the topic. A member
    that misses a topic rejoins without it, and again with it once it exists again (`watch_missing`); the changed
    subscription triggers a rebalance each time.
    """
    while True:
        for topic, topic_id in ids.items():
            info = cluster.view.topics.get(topic)
            if info is None and await _refresh_and_check_gone(cluster, topic):
                on_change(PartitionsChanged(f"topic {topic!r} was deleted"))
                return
            if info is not None and info.topic_id != topic_id and m.NO_UUID not in (info.topic_id, topic_id):
                on_change(PartitionsChanged(f"topic {topic!r} was deleted and recreated"))
                return
        await cluster.wait_updated()


async def _refresh_and_check_gone(cluster: ClusterClient, topic: str) -> bool:
    """Refresh the metadata after a backoff, and return whether the topic is missing from it as well."""
    await _refresh_again(cluster)
    return topic not in cluster.view.topics


async def _refresh_again(cluster: ClusterClient) -> None:
    """Refresh the metadata once more after a backoff: a broker that has just started may not know all topics yet."""
    backoff = cluster.backoff()
    while True:
        await asyncio.sleep(backoff.next())
        try:
            await cluster.refresh()
        except AsyncGroupError:
            continue
        return


async def watch_missing(
    cluster: ClusterClient,
    missing: Mapping[str, float],
    timeout: float,
    on_change: OnChange,
    on_timeout: Callable[[BrokerError], None],
) -> None:
    """Refresh the metadata with backoff until a missing topic exists again, then call `on_change`.

    A topic missing for `timeout` seconds, counted from the loop time in `missing`, is an error: it is passed to
    `on_timeout`. The topics must be tracked.
    """
    backoff, time = cluster.backoff(), asyncio.get_running_loop().time
    deadline = min(missing.values()) + timeout
    while True:
        if back := [topic for topic in sorted(missing) if topic in cluster.view.topics]:
            on_change(PartitionsChanged(f"topic {back[0]!r} exists again"))
            return
        if time() >= deadline:
            topic = min(missing, key=lambda name: missing[name])
            text = f"it was deleted, and not recreated within {timeout:g} s"
            on_timeout(BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}", text))
            return
        await asyncio.sleep(min(backoff.next(), deadline - time()))
        try:
            await cluster.refresh()
        except AsyncGroupError:
            deadline = max(deadline, time() + backoff.next())  # no broker has responded, so it may exist


async def watch_pattern(
    cluster: ClusterClient, pattern: re.Pattern[str], matched: Collection[str], on_change: OnChange
) -> None:
    """Compare the cluster's topics with those that the pattern matched, every `metadata_refresh_interval` (0: never).

    Every member does this, as in Java (`ConsumerCoordinator.updatePatternSubscription`).
    """
    interval = cluster.config.metadata_refresh_interval
    backoff = cluster.backoff()
    pause = interval
    while interval > 0:
        await asyncio.sleep(pause)
        try:
            found = await cluster.all_topics()
        except AsyncGroupError:
            pause = min(interval, backoff.next())
            continue
        backoff.reset()
        pause = interval
        now = _matching(pattern, found)
        if not now.issuperset(matched):
            # look up a second time here too
            await asyncio.sleep(cluster.backoff().next())
            try:
                now |= _matching(pattern, await cluster.all_topics())
            except AsyncGroupError:
                continue
        if now != set(matched):
            on_change(TopicsChanged(_difference(pattern, set(matched), now)))
            return


def _matching(pattern: re.Pattern[str], topics: Mapping[str, TopicInfo]) -> set[str]:
    """Return the topics that the pattern matches, without internal ones."""
    return {name for name, info in topics.items() if pattern.match(name) and not info.is_internal}


def _difference(pattern: re.Pattern[str], before: set[str], now: set[str]) -> str:
    parts = [
        f"{word} {', '.join(sorted(names))}"
        for word, names in (("matches", now - before), ("no longer matches", before - now))
        if names
    ]
    return f"the pattern {pattern.pattern!r} {' and '.join(parts)}"
