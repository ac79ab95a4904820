"""A cluster with one scripted coordinator, as much of it as committing and fetching offsets looks at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from asyncgroup.cluster.backoff import Backoff
from asyncgroup.config import ConsumerConfig
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, encode

__all__ = ["FakeCluster", "answer_commit", "committed_by", "now"]

Script = Callable[[Any], Awaitable[Any]]


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeCoordinators:
    """Answers requests by `script(request)`; what it raises is raised. `highest` of its own limits the version."""

    def __init__(self) -> None:
        self.script: Script = answer_commit
        self.version = 99
        self.requests: list[tuple[float, Any]] = []
        self.lanes: set[str] = set()
        self.forgotten = 0
        self.under_way = self.most_under_way = 0

    def forget(self, key: str) -> None:
        assert key == "g"
        self.forgotten += 1

    async def request(self, key: str, message: Any, **how: Any) -> Any:
        return await self.request_built(key, type(message), lambda _: message, **how)

    async def request_built(self, key: str, cls: Any, build: Any, *, lane: str, highest: int) -> Any:
        assert key == "g"
        self.lanes.add(lane)
        version = min(self.version, highest)
        # over the wire and back, so that only what the version can say arrives
        request = decode(cls, version, encode(build(version), version))
        self.requests.append((now(), request))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self.script(request)
        finally:
            self.under_way -= 1


class FakeCluster:
    """Stands for a Cluster; `coordinators.script` says how it answers."""

    def __init__(self, *, hooks: Any = (), **config: Any) -> None:
        self.config = ConsumerConfig(**config)
        self.coordinators = FakeCoordinators()
        self.hooks = Hooks(hooks)

    def backoff(self) -> Backoff:
        return Backoff(self.config.retry_backoff, self.config.retry_backoff_max, random.Random(1))


def committed_by(request: m.OffsetCommitRequest) -> dict[TopicPartition, tuple[int, str]]:
    """What a request commits."""
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
) -> SimpleNamespace:
    """The answer of a coordinator: `codes` for single partitions, or one for all."""
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
        topics.append(response.OffsetCommitResponseTopic(name=topic.name, partitions=parts))
    return SimpleNamespace(topics=topics)
