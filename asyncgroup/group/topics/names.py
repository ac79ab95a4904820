"""TopicNames: the names of assigned topics, which the coordinator names by id (KIP-848)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from uuid import UUID

from asyncgroup.cluster import ClusterClient
from asyncgroup.wire import messages as m

__all__ = ["TopicNames"]


class TopicNames:
    """Topic names by id: those of the metadata, and those of assigned topics that it had before.

    A broker that has just started may not know all topics, which is no reason to give up their partitions. With a pattern
    that the broker matches, the metadata has a topic only after a lookup by its id (`look_up`).
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._known: dict[UUID, str] = {}
        self._looked_up: frozenset[UUID] = frozenset()
        self._tracked = contextlib.ExitStack()

    def of(self, topic_ids: frozenset[UUID]) -> Mapping[UUID, str]:
        """Return the known names, those of these assigned ids among them. Former names of other ids are forgotten."""
        kept = {topic_id: self._known[topic_id] for topic_id in topic_ids & self._known.keys()}
        topics = self._cluster.view.topics.items()
        self._known = kept | {topic.topic_id: name for name, topic in topics if topic.topic_id != m.NO_UUID}
        return self._known

    def were_looked_up(self, topic_ids: Iterable[UUID]) -> bool:
        """Whether the last lookup had all of these."""
        return self._looked_up.issuperset(topic_ids)

    async def look_up(self, topic_ids: frozenset[UUID]) -> None:
        """Get the metadata of these topics, and include them in it until `release`.

        An id may still be without a name afterwards. Raises NoBrokersError, AuthenticationError, BrokerError,
        RequestTimedOut, ClosedError.
        """
        self._looked_up = topic_ids
        names = await self._cluster.topic_names(topic_ids)
        self.release()
        self._tracked.enter_context(self._cluster.tracking(names))
        await self._cluster.refresh()

    def release(self) -> None:
        """End the tracking of topics that were looked up: the session tracks those that it is assigned."""
        self._tracked.close()
