"""A fake Cluster with one scripted group coordinator: the part that commits and offset fetches use."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from asyncgroup.cluster.metadata import ClusterView, TopicInfo
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import AsyncGroupError
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, encode

__all__ = ["FakeCluster", "answer_commit", "committed_by", "now"]

NEWEST = 10
"""The latest version of OffsetCommit and OffsetFetch."""

Script = Callable[[Any], Awaitable[Any]]


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeCoordinators:
    """Answers requests with `script(request)`, or raises what it raises. Its attribute `highest` limits the version."""

    def __init__(self) -> None:
        self.script: Script = answer_commit
        self.version = 99
        self.requests: list[tuple[float, Any]] = []
        self.lookup: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.lanes: set[str] = set()
        self.marked_unknown = self.marked_stale = 0
        self.lookups = 1
        self.known = True
        self.under_way = self.most_under_way = 0

    def mark_unknown(self, key: str) -> None:
        assert key == "g"
        self.marked_unknown += 1
        self.lookups += 1
        self.known = False

    def lookup_number(self, key: str) -> int | None:
        assert key == "g"
        return self.lookups if self.known else None

    def mark_stale(self, key: str) -> None:
        assert key == "g"
        self.marked_stale += 1
        self.lookups += 1
        self.known = False

    async def request_versioned(
        self, key: str, cls: Any, build: Any, *, lane: str, highest: int | None
    ) -> Any:
        assert key == "g"
        self.lanes.add(lane)
        await self.lookup()
        self.known = True
        version = min(self.version, NEWEST if highest is None else highest)
        # encode and decode, so that only the version's fields arrive
        request = decode(cls, version, encode(build(version), version))
        self.requests.append((now(), request))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self.script(request)
        finally:
            self.under_way -= 1


class FakeCluster:
    """Stands for a Cluster; `coordinators.script` returns the responses."""

    def __init__(self, *, hooks: Any = (), **config: Any) -> None:
        self.config = ConsumerConfig(**config)
        self.coordinators = FakeCoordinators()
        self.hooks = Hooks(hooks)
        self.view = ClusterView()
        self.refreshed: Callable[[], None] = lambda: None
        self.refreshes = 0
        self.random = random.Random(1)

    def topic(self, name: str, topic_id: UUID | None) -> None:
        """Set a topic's id in the metadata; None removes the topic."""
        topics = {key: topic for key, topic in self.view.topics.items() if key != name}
        if topic_id is not None:
            topics[name] = TopicInfo(name, topic_id)
        self.view = replace(self.view, topics=topics)

    async def refresh(self) -> None:
        self.refreshes += 1
        self.refreshed()

    async def try_refresh(self) -> None:
        with suppress(AsyncGroupError):
            await self.refresh()

    def retry(self, **limits: Any) -> RetryLoop:
        return RetryLoop(RetryBackoff.configured(self.config, random.Random(1)), **limits)


def committed_by(request: m.OffsetCommitRequest) -> dict[TopicPartition, tuple[int, str]]:
    """Return the offset and metadata that a request commits for each partition."""
    return {
        TopicPartition(topic.name, part.partition_index): (
            part.committed_offset,
            part.committed_metadata or "",
        )
        for topic in request.topics
        for part in topic.partitions
    }


async def answer_commit(
    request: m.OffsetCommitRequest, codes: dict[TopicPartition, int] | int = 0
) -> m.OffsetCommitResponse:
    """Return a coordinator's response: `codes` for single partitions, or one code for all."""
    response = m.OffsetCommitResponse
    topics = []
    for topic in request.topics:
        parts = []
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            code = codes if isinstance(codes, int) else codes.get(tp, 0)
            parts.append(
                response.OffsetCommitResponsePartition(partition_index=tp.partition, error_code=code)
            )
        topics.append(response.OffsetCommitResponseTopic(topic.name, topic.topic_id, parts))
    return response(topics=topics)
