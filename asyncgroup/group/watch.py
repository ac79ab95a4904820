"""The leader's watch over partition counts: a plan made for other counts is due for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from asyncgroup.cluster import Cluster
from asyncgroup.errors import AsyncGroupError, PartitionsChanged, SessionEnd

__all__ = ["watch_partitions"]


async def watch_partitions(
    cluster: Cluster, planned: Mapping[str, int], on_change: Callable[[SessionEnd], None]
) -> None:
    """Compare every metadata refresh with the counts of the plan; tells `on_change` once, at the first difference.

    The leader alone watches, as in sarama (`loopCheckPartitionNumbers`): its rejoin makes the group rebalance. The
    topics must be tracked.
    """
    await _see_all(cluster, planned)
    while True:
        for topic, count in planned.items():
            info = cluster.view.topics.get(topic)
            now = len(info.partitions) if info is not None else 0
            if now != count and not (info is not None and info.error_code):
                on_change(
                    PartitionsChanged(f"topic {topic!r} has {now} partitions, the plan was made for {count}")
                )
                return
        await cluster.wait_updated()


async def _see_all(cluster: Cluster, planned: Mapping[str, int]) -> None:
    """Refresh if a topic is missing from the view.

    Other members' topics were tracked while the plan was made and are again now; a refresh in between, which may be
    another client's of the same cluster, has forgotten them, and that is no reason for a rebalance.
    """
    backoff = cluster.backoff()
    while any(count and topic not in cluster.view.topics for topic, count in planned.items()):
        try:
            await cluster.refresh()
        except AsyncGroupError:
            await asyncio.sleep(backoff.next())
        else:
            return
