"""ClusterLookups: which cluster has a topic, when topics move from one cluster to another (PIP-188)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar.connection.lookup import TopicLookup
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ClusterLookups"]


class ClusterLookups:
    """The lookups of a client: that of its service URL, and those of the clusters that topics have moved to.

    The old cluster keeps a partition until its subscriptions have acknowledged everything. So a producer or consumer asks there
    first, and its broker sends it on; a partition that only the new cluster has is looked up in the new one (Java's client asks
    the cluster of the service URL only, and does not find it).
    """

    def __init__(self, service: TopicLookup, open_lookup: Callable[[str], TopicLookup]) -> None:
        """`open_lookup` returns the lookup of the cluster with a service URL. Raises ConfigError."""
        self.service = service
        """The lookup at the client's service URL."""
        self._open_lookup = open_lookup
        self._others: dict[str, TopicLookup] = {}  # by service URL
        self._moved: dict[TopicName, TopicLookup] = {}  # where each topic is now
        self._counts: dict[TopicName, int] = {}  # partitions by the cluster of the service URL

    def __repr__(self) -> str:
        return f"<ClusterLookups {self.service!r}, {len(self._moved)} topics have moved>"

    def of(self, topic: TopicName) -> TopicLookup:
        """Return the lookup that finds the first broker of a topic, or of a partition."""
        if not self._moved:
            return self.service
        whole = topic.whole
        moved = self._moved.get(whole)
        is_old = topic.partition < self._counts.get(whole, inf)
        return self.service if moved is None or is_old else moved

    def move(self, topic: TopicName, url: str) -> TopicLookup:
        """A topic, or a partition of it, is in the cluster of a service URL now; return the lookup there. Raises ConfigError."""
        found = self._others.get(url)
        if found is None:
            found = self._others[url] = self._open_lookup(url)
        self._moved[topic.whole] = found
        return found

    async def partitions_of(self, topic: TopicName, *, create: bool = True) -> int:
        """Return the number of a topic's partitions in all of its clusters, see `TopicLookup.partitions_of`."""
        moved = self._moved.get(topic)
        if moved is None:
            count = self._counts[topic] = await self.service.partitions_of(topic, create=create)
            return count
        return max(await asyncio.gather(moved.partitions_of(topic, create=create), self._old_count(topic)))

    async def _old_count(self, topic: TopicName) -> int:
        """Return the number of partitions in the old cluster; the last one that is known if it is gone."""
        with suppress(AsyncGroupError):
            self._counts[topic] = await self.service.partitions_of(topic, create=False)
        return self._counts.get(topic, 0)

    async def aclose(self) -> None:
        """End what runs; safe to call twice."""
        for lookup in (self.service, *self._others.values()):
            await lookup.aclose()
