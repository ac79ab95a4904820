"""Subscriptions: topics by name or by pattern, their resolution, and the topics seen so far."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.checks import check_topic
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import TopicInfo, topic_error
from asyncgroup.errors import BrokerError, ConfigError, ErrorCode
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern, check_classic
from asyncgroup.lifecycle import add_note
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "Absence",
    "KnownTopics",
    "Pattern",
    "ResolvedTopics",
    "Subscription",
    "Topics",
    "check_topics",
    "count_partitions",
    "matching_topics",
    "resolve_topics",
]


class Absence(NamedTuple):
    """Why and since when a topic that is subscribed to by name is not read."""

    since: float
    """The loop time at which it was first absent."""
    code: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    """The last error code of its metadata: that it does not exist, or that it cannot be used now."""

    @property
    def is_missing(self) -> bool:
        """Whether the topic does not exist."""
        return self.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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
        self._absent: dict[str, Absence] = {}
        self._deleted: set[str] = set()  # of these, what did not exist once
        self._patterns: set[Pattern] = set()  # matched before

    def __contains__(self, topic: object) -> bool:
        """Whether the topic was ever seen."""
        return topic in self._first_counts

    def update(self, topics: Iterable[TopicInfo], *, are_new: bool = False) -> None:
        """Record topics that exist now. `are_new`: those never seen before did not exist at an earlier lookup."""
        for info in topics:
            if info.error_code:
                continue  # its id and partitions are not known
            before = self._ids.get(info.name)
            recreated = info.name in self._deleted or (
                before is not None and m.NO_UUID not in (before, info.topic_id) and before != info.topic_id
            )
            if recreated or (are_new and info.name not in self._first_counts):
                self._first_counts[info.name] = 0
            else:
                # the first count stays: partitions beyond it were added since
                self._first_counts.setdefault(info.name, len(info.partitions))
            self._ids[info.name] = info.topic_id
            self._absent.pop(info.name, None)
            self._deleted.discard(info.name)

    def was_matched(self, pattern: Pattern) -> bool:
        """Whether all topics were matched with the pattern before, so that unseen ones are new."""
        return pattern in self._patterns

    def mark_matched(self, pattern: Pattern) -> bool:
        """Record that all topics are matched with the pattern; True if they were before, so that unseen ones are new."""
        known = self.was_matched(pattern)
        self._patterns.add(pattern)
        return known

    def mark_absent(self, topic: str, now: float, code: int) -> None:
        """Record that a topic cannot be used; one that does not exist, and exists later, was created since."""
        before = self._absent.get(topic)
        self._absent[topic] = absence = Absence(now if before is None else before.since, code)
        if absence.is_missing:
            self._deleted.add(topic)

    @property
    def absent(self) -> Mapping[str, Absence]:
        """The topics that do not exist, or cannot be used."""
        return self._absent

    def was_added(self, tp: TopicPartition) -> bool:
        """Whether the partition was created after its topic was first seen."""
        # of a topic that was never seen no partition is known to be new
        return tp.partition >= self._first_counts.get(tp.topic, tp.partition + 1)


Pattern: TypeAlias = "re.Pattern[str] | SubscriptionPattern"
"""A pattern that this client matches, or one that the broker matches."""

Topics: TypeAlias = "str | Iterable[str] | Pattern"
"""A topic, several topics, or a pattern: a compiled one selects topics by `re.Pattern.match` on their names."""

_ALLOWED = "a topic, several topics, or a compiled pattern"
_PATTERN_CHARACTERS = frozenset("^$*+?[](){}|\\")
"""Characters of regular expressions that topic names cannot have: aiokafka takes patterns as strings."""


def check_topics(topics: object, group_protocol: str = "consumer") -> list[str] | Pattern:
    """Return the topics as a sorted list without repeats, or the pattern.

    Raises ConfigError if there are none, one is invalid, or the group protocol does not allow them.
    """
    if isinstance(topics, SubscriptionPattern):
        if group_protocol == "classic":
            check_classic(topics)
        return topics
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise ConfigError("topics", topics, "a pattern of str, not of bytes")
        return topics
    if isinstance(topics, str):
        if _looks_like_pattern(topics):
            raise ConfigError("topics", topics, f"{_ALLOWED}: {_as_pattern(topics, group_protocol)}")
        return [check_topic(topics)]
    # bytes are iterable as numbers
    if not isinstance(topics, Iterable) or isinstance(topics, (bytes, bytearray)):
        raise ConfigError("topics", topics, _ALLOWED)
    names = sorted({_check_listed(topic, group_protocol) for topic in topics})
    if not names:
        raise ConfigError("topics", topics, f"{_ALLOWED}; it is empty")
    return names


def _check_listed(topic: object, group_protocol: str) -> str:
    """Return a topic of a list. Raises ConfigError if it is not one, and for a pattern: a list cannot have any."""
    if isinstance(topic, (re.Pattern, SubscriptionPattern)):
        allowed = f"a pattern stands alone, not in a list: {_as_pattern('a|b', group_protocol)}"
        raise ConfigError("topics", topic, allowed)
    if isinstance(topic, str) and _looks_like_pattern(topic):
        pattern = _as_pattern(topic, group_protocol)
        raise ConfigError("topic", topic, f"topics by name, or one pattern instead of the list: {pattern}")
    return check_topic(topic)


def _looks_like_pattern(topic: str) -> bool:
    return not _PATTERN_CHARACTERS.isdisjoint(topic)


def _as_pattern(topic: str, group_protocol: str) -> str:
    """Return how to write a pattern that was given as a string; another one as an example if Python cannot compile it."""
    try:
        re.compile(topic)
    except re.error:
        topic = "orders.*"
    by_client = f"re.compile({topic!r})"
    if group_protocol == "classic":
        return by_client
    return f"{by_client} or, with the consumer protocol, SubscriptionPattern({topic!r})"


class Subscription:
    """The subscription of one call of `consume()` or `run()`; `change` replaces its topics."""

    def __init__(self, topics: Topics, group_protocol: str = "consumer") -> None:
        self._group_protocol = group_protocol
        self.wanted = check_topics(topics, group_protocol)

    def __repr__(self) -> str:
        return f"<Subscription {self.wanted!r}>"

    @property
    def names(self) -> list[str]:
        """The topics subscribed to by name; empty for a pattern."""
        return self.wanted if isinstance(self.wanted, list) else []

    def change(self, topics: Topics) -> bool:
        """Change the topics; False if they are the same. Raises ConfigError."""
        wanted = check_topics(topics, self._group_protocol)
        if wanted == self.wanted:
            return False
        self.wanted = wanted
        return True


class ResolvedTopics(NamedTuple):
    """The topics of a subscription when the member joined."""

    existing: list[str]
    """Topics that the member subscribes to by name; a pattern that the broker matches adds none."""
    wanted: list[str] | Pattern
    """The subscription at that time."""
    absent: Mapping[str, Absence] = MappingProxyType({})
    """Topics that do not exist, or cannot be used."""

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern that this client matches, if any."""
        return self.wanted if isinstance(self.wanted, re.Pattern) else None

    @property
    def broker_pattern(self) -> SubscriptionPattern | None:
        """The pattern that the broker matches, if any."""
        return self.wanted if isinstance(self.wanted, SubscriptionPattern) else None

    @property
    def subscribed(self) -> list[str] | SubscriptionPattern:
        """What the member joins with."""
        return self.broker_pattern or self.existing

    @property
    def names(self) -> list[str]:
        """All topics whose metadata is needed."""
        return [*self.existing, *self.absent]


async def resolve_topics(
    cluster: ClusterClient,
    subscription: Subscription,
    known: KnownTopics,
    *,
    waits_for_missing: bool = False,
    optional: Collection[str] = (),
) -> ResolvedTopics:
    """Return the topics to join with: every topic subscribed to by name, or those that the pattern matches now.

    A topic subscribed to by name must exist, unless `waits_for_missing`, it is `optional`, or it existed before. One that need
    not exist is left out while it is missing or has an error, such as a permission that was taken away, so that the others
    continue; that is recorded in `known`. (Java and sarama raise the error; franz-go reads the others.) The same holds for an
    optional topic that a pattern matches. With a pattern that the broker matches no topics
    are known before the assignment: those that exist now are recorded, so that later ones are known to be new. Raises
    BrokerError for a topic that must exist and does not, or is not authorized, TransportError.
    """
    wanted = subscription.wanted
    if isinstance(wanted, SubscriptionPattern):
        # only once: a later look would take topics that were created since for known ones
        if not known.was_matched(wanted):
            known.update((await cluster.all_topics()).values())
            known.mark_matched(wanted)
        absent = _record(known, await _absent(cluster, optional, known, optional))
        back = {name for name in optional if name in known.absent} - absent.keys()
        known.update(cluster.view.topics[name] for name in back)
        return ResolvedTopics([], wanted, absent)
    if isinstance(wanted, re.Pattern):
        found = await cluster.all_topics()
        matched = sorted(matching_topics(wanted, found))
        known.update([found[name] for name in matched], are_new=known.mark_matched(wanted))
        absent = _record(known, await _absent(cluster, optional, known, optional))
        return ResolvedTopics([name for name in matched if name not in absent], wanted, absent)
    may_be_absent = [name for name in wanted if waits_for_missing or name in optional or name in known]
    codes = await _absent(cluster, may_be_absent, known, optional)
    while True:
        there = [name for name in wanted if name not in codes]
        try:
            known.update((await cluster.topics(there)).values())
        except BrokerError as error:
            left = [name for name in there if name in may_be_absent]
            if failed := _codes(cluster, left, known, optional):
                codes |= failed  # since the look before
                continue
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                add_note(error, 'with missing_topics="wait" the group waits for a topic that does not exist')
            raise
        return ResolvedTopics(there, wanted, _record(known, codes))


def _record(known: KnownTopics, codes: Mapping[str, int]) -> dict[str, Absence]:
    """Record the topics with these error codes as absent; return them."""
    for name, code in codes.items():
        known.mark_absent(name, asyncio.get_running_loop().time(), code)
    return {name: known.absent[name] for name in codes}


async def _absent(
    cluster: ClusterClient, names: Collection[str], known: KnownTopics, optional: Collection[str]
) -> dict[str, int]:
    """Return the error code of each topic that cannot be used, also by fresh metadata.

    Two refreshes decide about a topic that was never seen, and about one with a retriable error. A broker that has just
    started may not know all topics yet, and a topic that was missing is read from its start. A topic that was never seen is
    not left out for an error that is not retriable, unless it is optional.
    """
    if not _errors(cluster, names):
        return {}
    with cluster.tracking(names):
        await cluster.refresh()
        if any(_may_pass(name, error, known) for name, error in _errors(cluster, names).items()):
            await cluster.retry().wait()
            await cluster.refresh()
    return _codes(cluster, names, known, optional)


def _codes(
    cluster: ClusterClient, names: Collection[str], known: KnownTopics, optional: Collection[str]
) -> dict[str, int]:
    """Return the error codes of the topics that may be left out by the metadata at hand."""
    errors, seen = _errors(cluster, names), {*known.absent, *optional}
    return {
        name: error.code for name, error in errors.items() if error.retriable or name in seen or name in known
    }


def _errors(cluster: ClusterClient, names: Collection[str]) -> dict[str, BrokerError]:
    return {name: error for name in names if (error := topic_error(cluster.view, name)) is not None}


def _may_pass(name: str, error: BrokerError, known: KnownTopics) -> bool:
    """Whether another refresh may find the topic, and it was not found missing before."""
    is_missing = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return error.retriable and name not in known.absent and not (is_missing and name in known)


def matching_topics(pattern: re.Pattern[str], topics: Mapping[str, TopicInfo]) -> set[str]:
    """Return the topics that the pattern matches, without internal ones."""
    return {name for name, info in topics.items() if pattern.match(name) and not info.is_internal}


async def count_partitions(cluster: ClusterClient, topics: Iterable[str]) -> dict[str, int]:
    """Return the partition counts of topics by fresh metadata; 0 for topics that do not exist.

    Topics without partitions are looked up a second time: a broker that has just restarted may not know all topics
    yet, and the assignment would revoke their partitions.
    """
    topics = sorted(topics)
    with cluster.tracking(topics):
        await cluster.refresh()
        counts = cluster.view.partition_counts(topics)
        if any(not counts.get(topic) for topic in topics):
            await cluster.retry().wait()
            await cluster.refresh()
            again = cluster.view.partition_counts(topics)
            # a topic is missing only if both responses lack it
            counts = {topic: counts.get(topic) or again.get(topic, 0) for topic in topics}
    return dict.fromkeys(topics, 0) | counts
