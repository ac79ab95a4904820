"""Work queues on a real Kafka: the stories of `tests/stories/queues.py`, at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from asyncgroup import Consumer, TopicPartition
from asyncgroup.offsets.metadata_limit import fetch_metadata_limit
from asyncgroup.workqueue import Delivery, RetryTopic
from asyncgroup.workqueue.group_engine import retry_topics
from tests.real.support import RunningKafka
from tests.stories import queues
from tests.stories.environment import CONSUMER, Environment
from tests.stories.queue_members import send, working
from tests.stories.real import RealEnvironment

IN_ANY_MODE: list[Callable[[Environment], Awaitable[None]]] = [
    queues.exclusive,
    queues.failover,
    queues.keys_in_order,
    queues.closes_and_reopens,
    queues.dead_letters,
    queues.reconsumed,
    queues.rebalance_while_handlers_run,
]


class QueueEnvironment(RealEnvironment):
    """Also deletes the retry and dead letter topics."""

    session_timeout = 6.0
    heartbeat_interval = 0.5

    async def _clean_up(self) -> None:
        async with Consumer(self.bootstrap_servers) as consumer:
            existing = await consumer.topics()
        self._topics += [name for name in existing if name.startswith(f"{self.topic}-")]
        await super()._clean_up()


class CooperativeEnvironment(QueueEnvironment):
    """Claims stay over rebalances."""

    protocol: Mapping[str, Any] = MappingProxyType({"assignors": ("cooperative-sticky",)})


class ConsumerProtocolEnvironment(QueueEnvironment):
    """KIP-848."""

    protocol: Mapping[str, Any] = CONSUMER


async def run(
    kind: type[QueueEnvironment],
    servers: str,
    directory: Path,
    stories: list[Callable[[Environment], Awaitable[None]]],
) -> None:
    """Run the stories, each in an environment of its own."""

    async def one(story: Callable[[Environment], Awaitable[None]]) -> None:
        async with kind(servers, directory) as env:
            await story(env)

    async with asyncio.TaskGroup() as group:
        for story in stories:
            group.create_task(one(story), name=getattr(story, "__name__", "story"))


async def test_stories(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    await run(QueueEnvironment, apache_kafka.bootstrap_servers, tmp_path, IN_ANY_MODE)


@pytest.mark.full
@pytest.mark.parametrize("kind", [CooperativeEnvironment, ConsumerProtocolEnvironment])
async def test_other_protocols(
    apache_kafka: RunningKafka, tmp_path: Path, kind: type[QueueEnvironment]
) -> None:
    stories = [queues.rebalance_while_handlers_run, queues.closes_and_reopens, queues.reconsumed]
    await run(kind, apache_kafka.bootstrap_servers, tmp_path, stories)


@pytest.mark.full
async def test_copies_that_are_done_are_deleted(
    apache_kafka: RunningKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_topics, "INTERVAL", 0.5)

    async def later(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            await delivery.reconsume_later(0.2)

    async with QueueEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        await send(env, b"0", b"1")
        async with working(env, "ann", later, retry=RetryTopic(partitions=1)) as ann:
            await ann.until_count("end", 4)
            tp = TopicPartition(ann.queue.retry_topic or "", 0)
            async with asyncio.timeout(env.limit), Consumer(env.bootstrap_servers) as consumer:
                while (await consumer.beginning_offsets([tp]))[tp] < 2:
                    await asyncio.sleep(0.2)


async def test_the_broker_says_how_large_metadata_may_be(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    async with QueueEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        assert await fetch_metadata_limit(env.admin.cluster) == 4096
