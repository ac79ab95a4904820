"""Watch topics during a session for changes that require a new assignment or subscription."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from asyncgroup.cluster import ClusterClient
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
            if info is None and await _is_gone(cluster, topic):
                on_change(PartitionsChanged(f"topic {topic!r} was deleted"))
                return
            if info is not None and info.topic_id != topic_id and m.NO_UUID not in (info.topic_id, topic_id):
                on_change(PartitionsChanged(f"topic {topic!r} was deleted and recreated"))
                return
        await cluster.wait_updated()


async def _is_gone(cluster: ClusterClient, topic: str) -> bool:
    """Whether the topic is missing from fresh metadata as well."""
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
