"""CopyTopicCreation: topics of copies that are created later, refused later, or looked up in vain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AsyncGroupError, ErrorCode
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.workqueue import DeadLetter, RetryTopic, WorkQueue
from asyncgroup.workqueue.group_engine.copy_topic_creation import INTERVAL, CopyTopicCreation
from asyncgroup.workqueue.group_engine.topic_names import CopyTopics

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")

RETRY, DEAD = "orders-g-RETRY", "orders-g-DLQ"


class Creation:
    """The creation of the topics of a queue on `orders`, and the errors that it reports."""

    def __init__(self, cluster: EmbeddedCluster, client: ClusterClient) -> None:
        self.cluster = cluster
        self.errors: list[AsyncGroupError] = []
        queue = WorkQueue("localhost:9092", "g", "orders", retry=RetryTopic(), dead_letter=DeadLetter())
        names = CopyTopics(queue.retry_topic, queue.dead_letter_topic)
        self.topics = CopyTopicCreation(client, "g", ["orders"], names, queue._settings, self.errors.append)

    def shapes(self) -> list[tuple[int, str]]:
        """Return the number of partitions and the retention time of each topic of copies that exists."""
        topics = [self.cluster.topic(name) for name in (RETRY, DEAD) if name in self.cluster.topics]
        return [(len(topic.partitions), topic.configs.get("retention.ms", "")) for topic in topics]

    def requests(self) -> int:
        return len(self.cluster.history.of("CreateTopics"))


@asynccontextmanager
async def creation(**options: Any) -> AsyncIterator[Creation]:
    """Begin to create the topics, on a cluster whose controller is away at first."""
    config = ClientConfig(retry_backoff=0.1, metadata_retry_max=1)
    async with EmbeddedCluster(nodes=1, seed=1, **options) as cluster:
        async with ClusterClient(cluster.bootstrap_servers, config) as client:
            made = Creation(cluster, client)
            away = cluster.faults.on("CreateTopics", times=None).error("NOT_CONTROLLER")
            await made.topics.create()
            away.cancel()
            assert list(made.topics.missing) == [RETRY, DEAD]
            assert len(made.errors) == 2
            running = start_task(made.topics.run())
            try:
                yield made
            finally:
                await cancel_and_wait(running)


def lines(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.name == "asyncgroup.workqueue"]
    prefix = f"group g: topic {topic!r} "
    return [text.removeprefix(prefix).split(":")[0] for text in texts if text.startswith(prefix)]


async def test_the_partitions_are_those_of_the_source_at_each_attempt(caplog: pytest.LogCaptureFixture):
    """Regression test: the number at the first attempt stayed, 1 as the source was not there yet."""
    caplog.set_level(logging.INFO, "asyncgroup.workqueue")
    async with creation() as made:
        made.cluster.create_topic("orders", 4)
        await asyncio.sleep(INTERVAL + 5)
        assert made.shapes() == [(4, "-1")] * 2
        assert (made.topics.missing, made.topics.problems(), len(made.errors)) == ({}, [], 2)
    assert lines(caplog, DEAD) == ["could not be created", "exists now"]
    assert lines(caplog, RETRY) == ["could not be created"]  # the group that reads it says the rest


async def test_no_topic_is_created_while_the_source_has_an_error():
    """One with a single partition would stay."""

    def unavailable(response: Any) -> Any:
        for topic in response.topics:
            if topic.name == "orders":
                topic.error_code, topic.partitions = ErrorCode.LEADER_NOT_AVAILABLE, []
        return response

    async with creation() as made:
        made.cluster.create_topic("orders", 4)
        fault = made.cluster.faults.on("Metadata", times=None).mutate(unavailable)
        requests = made.requests()
        await asyncio.sleep(3 * INTERVAL)
        assert made.requests() == requests
        fault.cancel()
        await asyncio.sleep(2 * INTERVAL)
        assert made.shapes() == [(4, "-1")] * 2


async def test_a_topic_that_is_refused_later_is_reported(caplog: pytest.LogCaptureFixture):
    """Regression test: it was dropped without a word. From then on only its existence is looked up."""
    caplog.set_level(logging.INFO, "asyncgroup.workqueue")
    async with creation() as made:
        made.cluster.faults.on("CreateTopics", topic=DEAD).error("POLICY_VIOLATION")
        await asyncio.sleep(INTERVAL + 5)
        assert [str(error).split(" (")[0] for error in made.errors[2:]] == [
            f"creating topic '{DEAD}': POLICY_VIOLATION"
        ]
        (problem,) = made.topics.problems()
        assert problem.startswith(f"topic '{DEAD}' could not be created: ")
        assert "POLICY_VIOLATION" in problem
        requests = made.requests()
        await asyncio.sleep(10 * INTERVAL)
        assert (made.requests(), len(made.errors)) == (requests, 3)
        made.cluster.create_topic(DEAD, 7)
        await asyncio.sleep(2 * INTERVAL)
        assert made.topics.problems() == []
    assert lines(caplog, DEAD) == ["could not be created", "could not be created", "exists now"]


async def test_a_bug_does_not_end_the_attempts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async with creation() as made:
        made.cluster.create_topic("orders", 2)
        found: Callable[..., Any] = made.topics._cluster.partitions
        monkeypatch.setattr(made.topics._cluster, "partitions", None)
        await asyncio.sleep(INTERVAL + 5)
        assert "TypeError" in caplog.text
        assert made.shapes() == []
        monkeypatch.setattr(made.topics._cluster, "partitions", found)
        await asyncio.sleep(INTERVAL)
        assert made.shapes() == [(2, "-1")] * 2


async def test_the_topics_have_as_many_partitions_as_the_source_that_the_queue_creates() -> None:
    options = {"auto_create_topics": True, "default_partitions": 3}
    async with EmbeddedCluster(nodes=1, seed=1, **options) as cluster:
        async with ClusterClient(cluster.bootstrap_servers) as client:
            made = Creation(cluster, client)
            await made.topics.create()
            assert cluster.topics == ["orders", DEAD, RETRY]
            assert [partitions for partitions, _ in made.shapes()] == [3, 3]
