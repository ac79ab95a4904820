"""TopicWatch: looks for changes of the topics of a session that need a new assignment or a new subscription."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, TypeVarTuple
from uuid import UUID

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import TopicInfo, topic_error
from asyncgroup.errors import (
    AsyncGroupError,
    ErrorCode,
    PartitionsChanged,
    SessionEnd,
    TopicsChanged,
)
from asyncgroup.group.assignors.racks import PartitionRacks, replica_racks
from asyncgroup.group.membership import JoinedGroup
from asyncgroup.group.topics.topics import Absence, ResolvedTopics, matching_topics
from asyncgroup.lifecycle import BackgroundTasks, run_until, wait_within
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.wire import messages as m

__all__ = [
    "ChangePauses",
    "TopicWatch",
    "watch_absent",
    "watch_partitions",
    "watch_pattern",
    "watch_racks",
    "watch_topics",
]

NEW_ENOUGH: Final = 1.0
"""Seconds for which metadata counts as new after a rebalance."""

OnChange = Callable[[SessionEnd], None]

Ts = TypeVarTuple("Ts")


CALM: Final = 30.0
"""Seconds without a change after which the next one leads to a rebalance at once; also the longest pause before one."""


class ChangePauses:
    """The pauses before rebalances for changes of topics, over the sessions of a member.

    While brokers disagree whether a topic exists, each look may find another change.
    """

    def __init__(self, first: float, rng: random.Random) -> None:
        """`first` is the first pause in seconds."""
        self._backoff = RetryBackoff(first, max(CALM, first), rng)
        self._changed_at = float("-inf")  # loop time

    def __repr__(self) -> str:
        return f"<ChangePauses: {self._backoff.failures} changes in a row>"

    def next(self, now: float) -> float:
        """Return the seconds to wait after a change: 0 for the first one in a while."""
        is_first = now - self._changed_at > CALM
        self._changed_at = now
        if is_first:
            self._backoff.reset()
            return 0.0
        pause = self._backoff.next()
        self._changed_at += pause
        return pause


class TopicWatch:
    """Watches the topics of a session; each new assignment replaces what is watched.

    `on_change(cause)` is called at a change, at most once for each assignment and way to notice it, after a pause if there were
    others shortly before.
    """

    def __init__(
        self, cluster: ClusterClient, tasks: BackgroundTasks, pauses: ChangePauses, on_change: OnChange
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._pauses = pauses
        self._on_change = on_change
        self._tracked = contextlib.ExitStack()
        self._superseded = asyncio.Event()
        self._ids: Mapping[str, UUID] = {}  # of the member's own topics, as far as known
        self._reads_all = True  # whether partitions of each of them are assigned

    def track(self, joined: JoinedGroup, resolved: ResolvedTopics) -> None:
        """Include these topics in the metadata from now on, instead of those before."""
        tracked = contextlib.ExitStack()
        topics = {*joined.assignment, *joined.partition_counts, *resolved.names}
        tracked.enter_context(self._cluster.tracking(topics))
        # the new ones first: a topic of both must stay in the metadata
        self._tracked.close()
        self._tracked = tracked

    def start(self, joined: JoinedGroup, resolved: ResolvedTopics) -> None:
        """Watch these topics from now on, instead of those before; they must be tracked."""
        self._superseded.set()
        self._superseded = asyncio.Event()
        cluster, topics = self._cluster, self._cluster.view.topics
        if joined.is_leader:
            self._watch(watch_partitions, cluster, joined.partition_counts)
        if joined.racks is not None:
            self._watch(watch_racks, cluster, joined.racks)
        # one that the metadata lacks since its last look is watched as well: it may be deleted
        self._ids = {
            name: topics[name].topic_id if name in topics else self._ids.get(name, m.NO_UUID)
            for name in resolved.existing
        }
        self._reads_all = self._ids.keys() <= joined.assignment.keys()
        self._watch(watch_topics, cluster, self._ids, joined.assignment)
        self.look()
        if resolved.pattern is not None:
            self._watch(watch_pattern, cluster, resolved.pattern, resolved.existing)
        if resolved.absent:
            self._watch(watch_absent, cluster, resolved.absent)

    def look(self) -> None:
        """Refresh the metadata after a rebalance, unless it is new, or partitions of each topic are assigned.

        A topic may have been deleted of which this member reads nothing, so that no response names it.
        """
        if self._reads_all:
            return
        if asyncio.get_running_loop().time() - self._cluster.view.updated_at > NEW_ENOUGH:
            self._tasks.spawn(self._cluster.try_refresh, name="metadata after a rebalance")

    def _watch(self, watch: Callable[[*Ts, OnChange], Coroutine[Any, Any, None]], *args: *Ts) -> None:
        superseded = self._superseded

        async def watch_until_superseded() -> None:
            delayed: list[tuple[SessionEnd, float]] = []

            def on_change(cause: SessionEnd) -> None:
                if pause := self._pauses.next(asyncio.get_running_loop().time()):
                    delayed.append((cause, pause))
                else:
                    self._on_change(cause)

            watching = watch(*args, on_change)
            task = await run_until(superseded.wait(), watching, f"{self._tasks.name}: {watch.__name__}")
            if task.cancelled():
                return
            task.result()
            for cause, pause in delayed:
                # an assignment that was made during the pause has taken the change into account
                if not await wait_within(superseded, pause):
                    self._on_change(cause)

        self._tasks.spawn(watch_until_superseded, name=watch.__name__)

    def close(self) -> None:
        """Track no topics any more. The tasks end with the session's."""
        self._tracked.close()


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


async def watch_racks(cluster: ClusterClient, racks: PartitionRacks, on_change: OnChange) -> None:
    """Compare each metadata refresh with the racks of the assignment; call `on_change` if replicas are in other racks.

    As in Java (KAFKA-14867), but not while a broker of the partition is down: its rack is unknown, and when it comes
    back the replicas are where they were. Only the leader watches, the topics of all members, which must be tracked.
    """
    topics = {tp.topic for tp in racks}
    while True:
        view = cluster.view
        for tp, now in replica_racks(view, topics).items():
            replicas = view.topics[tp.topic].partitions[tp.partition].replicas
            if racks.get(tp, now) != now and all(replica in view.brokers for replica in replicas):
                on_change(PartitionsChanged(f"replicas of {tp} are in other racks"))
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
    retry = cluster.retry()
    # a topic that did not exist then has no partitions to miss
    while any(count and topic not in cluster.view.topics for topic, count in partition_counts.items()):
        try:
            await cluster.refresh()
        except AsyncGroupError:
            await retry.wait()
        else:
            return


async def watch_topics(
    cluster: ClusterClient, ids: Mapping[str, UUID], assigned: Collection[str], on_change: OnChange
) -> None:
    """Watch the member's own topics; call `on_change` when one is deleted, or recreated with another id.

    Also when one gets an error, such as a permission that was taken away, and it is not among those of which partitions
    are `assigned`: perhaps no member reads it, as the leader of the group cannot assign it.

    Every member does this, not only the leader, which may notice late if it owns no partition of the topic. A member
    that misses a topic rejoins without it, and again with it once it exists again (`watch_absent`); the changed
    subscription triggers a rebalance each time.
    """
    while True:
        for topic, topic_id in ids.items():
            info = cluster.view.topics.get(topic)
            # what a member reads reports its errors by its fetches
            if info is None or (info.error_code and topic not in assigned):
                if (problem := await _look_again(cluster, topic, is_read=topic in assigned)) is not None:
                    on_change(PartitionsChanged(problem))
                    return
            # brokers before Kafka 2.8 send no topic ids
            elif info.topic_id != topic_id and m.NO_UUID not in (info.topic_id, topic_id):
                on_change(PartitionsChanged(f"topic {topic!r} was deleted and recreated"))
                return
        await cluster.wait_updated()


async def _look_again(cluster: ClusterClient, topic: str, *, is_read: bool) -> str | None:
    """Refresh the metadata after a backoff; return the change if the topic is missing by that as well.

    So is an error of a topic of which nothing is read.
    """
    await _refresh_again(cluster)
    error = topic_error(cluster.view, topic)
    if error is None:
        return None
    if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"topic {topic!r} was deleted"
    return None if is_read else f"topic {topic!r} cannot be used: {error.name}"


async def _refresh_again(cluster: ClusterClient) -> None:
    """Refresh the metadata once more after a backoff: a broker that has just started may not know all topics yet."""
    retry = cluster.retry()
    while True:
        await retry.wait()
        try:
            await cluster.refresh()
        except AsyncGroupError:
            continue
        return


async def watch_absent(cluster: ClusterClient, absent: Mapping[str, Absence], on_change: OnChange) -> None:
    """Refresh the metadata with backoff until an absent topic can be used, then call `on_change`. The topics must be tracked.

    One that had an error and does not exist any more is also a change: it will be read from its start.

    For as long as it takes, as in Java and librdkafka: the other topics are read all the time.
    """
    retry = cluster.retry()
    while True:
        if back := [topic for topic in sorted(absent) if _count(cluster, topic)]:
            on_change(PartitionsChanged(f"topic {back[0]!r} can be read now"))
            return
        gone = [topic for topic, absence in absent.items() if _is_gone(cluster, topic, absence)]
        if gone:
            await _refresh_again(cluster)
            if gone[0] not in cluster.view.topics:
                on_change(PartitionsChanged(f"topic {gone[0]!r} was deleted"))
                return
        await retry.wait()
        await cluster.try_refresh()


def _is_gone(cluster: ClusterClient, topic: str, absence: Absence) -> bool:
    return not absence.is_missing and topic not in cluster.view.topics


async def watch_pattern(
    cluster: ClusterClient, pattern: re.Pattern[str], matched: Collection[str], on_change: OnChange
) -> None:
    """Compare the cluster's topics with those that the pattern matched, every `metadata_refresh_interval` (0: never).

    Every member does this, as in Java (`ConsumerCoordinator.updatePatternSubscription`).
    """
    interval = cluster.config.metadata_refresh_interval
    while interval > 0:
        await asyncio.sleep(interval)
        now = matching_topics(pattern, await _all_topics(cluster, interval))
        if not now.issuperset(matched):
            # look up a second time here too
            await cluster.retry().wait()
            try:
                now |= matching_topics(pattern, await cluster.all_topics())
            except AsyncGroupError:
                continue
        if now != set(matched):
            on_change(TopicsChanged(_difference(pattern, set(matched), now)))
            return


async def _all_topics(cluster: ClusterClient, longest: float) -> Mapping[str, TopicInfo]:
    """Request every topic until it succeeds, with pauses of at most `longest` seconds."""
    retry = cluster.retry(longest=longest)
    while True:
        try:
            return await cluster.all_topics()
        except AsyncGroupError:
            await retry.wait()


def _difference(pattern: re.Pattern[str], before: set[str], now: set[str]) -> str:
    parts = [
        f"{word} {', '.join(sorted(names))}"
        for word, names in (("matches", now - before), ("no longer matches", before - now))
        if names
    ]
    return f"the pattern {pattern.pattern!r} {' and '.join(parts)}"
