"""Watches over topics during a session: what makes a plan, or a subscription, due for a new one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    PartitionsChanged,
    SessionEnd,
    TopicsChanged,
)
from asyncgroup.wire import messages as m

__all__ = ["watch_missing", "watch_partitions", "watch_pattern", "watch_topics"]

OnChange = Callable[[SessionEnd], None]


async def watch_partitions(
    cluster: Cluster, partition_counts: Mapping[str, int], on_change: OnChange
) -> None:
    """Compare every metadata refresh with the counts of the plan; tells `on_change` once, at the first difference.

    A second look decides about a topic that seems to be gone, or to have fewer partitions. The leader alone watches, over the topics of all members, as in sarama (`loopCheckPartitionNumbers`): its rejoin
    makes the group rebalance. The topics must be tracked.
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
                    PartitionsChanged(f"topic {topic!r} has {now} partitions, the plan was made for {count}")
                )
                return
        await cluster.wait_updated()


def _count(cluster: Cluster, topic: str) -> int | None:
    """The partitions of a topic, 0 if it does not exist, None if it cannot be said now."""
    info = cluster.view.topics.get(topic)
    if info is None:
        return 0
    return None if info.error_code else len(info.partitions)


async def _ensure_known(cluster: Cluster, partition_counts: Mapping[str, int]) -> None:
    """Refresh if a topic is missing from the view.

    Other members' topics were tracked while the plan was made and are again now; a refresh in between, which may be
    another client's of the same cluster, has forgotten them, and that is no reason for a rebalance.
    """
    backoff = cluster.backoff()
    while any(count and topic not in cluster.view.topics for topic, count in partition_counts.items()):
        try:
            await cluster.refresh()
        except AsyncGroupError:
            await asyncio.sleep(backoff.next())
        else:
            return


async def watch_topics(cluster: Cluster, ids: Mapping[str, UUID], on_change: OnChange) -> None:
    """Every member's watch over its own topics: tells `on_change` when one is gone, or another one of that name is there.

    Not only the leader's: it may be long in noticing, as it may own nothing of the topic. Who misses one joins again
    without it, and with it when it is back (`watch_missing`), and each time the coordinator sees another subscription
    and rebalances.
    """
    while True:
        for topic, topic_id in ids.items():
            info = cluster.view.topics.get(topic)
            if info is None and await _is_gone(cluster, topic):
                on_change(PartitionsChanged(f"topic {topic!r} was deleted"))
                return
            if info is not None and info.topic_id != topic_id and m.NO_UUID not in (info.topic_id, topic_id):
                on_change(PartitionsChanged(f"topic {topic!r} was deleted and made anew"))
                return
        await cluster.wait_updated()


async def _is_gone(cluster: Cluster, topic: str) -> bool:
    """Whether a second look misses the topic as well."""
    await _refresh_again(cluster)
    return topic not in cluster.view.topics


async def _refresh_again(cluster: Cluster) -> None:
    """A second look at the metadata: a broker that has just started may not know every topic yet."""
    backoff = cluster.backoff()
    while True:
        await asyncio.sleep(backoff.next())
        try:
            await cluster.refresh()
        except AsyncGroupError:
            continue
        return


async def watch_missing(
    cluster: Cluster,
    missing: Mapping[str, float],
    timeout: float,
    on_change: OnChange,
    on_timeout: Callable[[BrokerError], None],
) -> None:
    """Look for topics that are gone, with growing pauses: the first that is back is told to `on_change`.

    One that stays away for `timeout` seconds (`missing` says since when) is an error, told to `on_timeout`. The topics
    must be tracked.
    """
    backoff, time = cluster.backoff(), asyncio.get_running_loop().time
    deadline = min(missing.values()) + timeout
    while True:
        if back := [topic for topic in sorted(missing) if topic in cluster.view.topics]:
            on_change(PartitionsChanged(f"topic {back[0]!r} is there again"))
            return
        if time() >= deadline:
            topic = min(missing, key=lambda name: missing[name])
            text = f"it was deleted, and not made anew within {timeout:g} s"
            on_timeout(BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}", text))
            return
        await asyncio.sleep(min(backoff.next(), deadline - time()))
        try:
            await cluster.refresh()
        except AsyncGroupError:
            deadline = max(deadline, time() + backoff.next())  # nobody who could know has answered


async def watch_pattern(
    cluster: Cluster, pattern: re.Pattern[str], matched: Collection[str], on_change: OnChange
) -> None:
    """Compare all topics of the cluster with those that the pattern matched, every `metadata_refresh_interval`.

    Each member watches for itself, as in Java (`ConsumerCoordinator.updatePatternSubscription`). 0 switches it off.
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
            # a second look here, too
            await asyncio.sleep(cluster.backoff().next())
            try:
                now |= _matching(pattern, await cluster.all_topics())
            except AsyncGroupError:
                continue
        if now != set(matched):
            on_change(TopicsChanged(_difference(pattern, set(matched), now)))
            return


def _matching(pattern: re.Pattern[str], topics: Mapping[str, TopicInfo]) -> set[str]:
    """The topics that the pattern matches, without those that are the brokers' own."""
    return {name for name, info in topics.items() if pattern.match(name) and not info.is_internal}


def _difference(pattern: re.Pattern[str], before: set[str], now: set[str]) -> str:
    parts = [
        f"{word} {', '.join(sorted(names))}"
        for word, names in (("matches", now - before), ("has lost", before - now))
        if names
    ]
    return f"the pattern {pattern.pattern!r} {' and '.join(parts)}"
