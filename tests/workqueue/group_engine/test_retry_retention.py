"""The warning about a retry topic whose copies brokers may delete."""

from __future__ import annotations

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.workqueue import RetryTopic, WorkQueue
from asyncgroup.workqueue.group_engine.retry_topics import DESCRIBE_TIMEOUT, warn_of_retention
from tests.scenario.support import now
from tests.work_queues import core_of

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "retention" in record.getMessage()]
    return [text.split(":")[1].strip() for text in found]


@pytest.mark.parametrize(
    ("configs", "retention"),
    [
        ({}, 604_800_000),
        ({"retention.ms": "0"}, 0),
        ({"retention.ms": "-1"}, None),
        ({"cleanup.policy": "compact"}, None),
    ],
)
async def test_a_retention_time(
    caplog: pytest.LogCaptureFixture, configs: dict[str, str], retention: int | None
):
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("again", 1, configs=configs)
        async with ClusterClient(cluster.bootstrap_servers) as client:
            await warn_of_retention(client, "g", "again")
    expected = [] if retention is None else [f"retry topic 'again' has retention.ms={retention}"]
    assert warnings(caplog) == expected


async def test_brokers_that_do_not_say_it(caplog: pytest.LogCaptureFixture):
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("again", 1)
        async with ClusterClient(cluster.bootstrap_servers) as client:
            cluster.faults.on("DescribeConfigs").error("TOPIC_AUTHORIZATION_FAILED")
            await warn_of_retention(client, "g", "again")
            cluster.faults.on("DescribeConfigs", nth=1, times=None).drop()
            began = now()
            await warn_of_retention(client, "g", "again")
            assert now() - began < DESCRIBE_TIMEOUT + 1.0
    assert warnings(caplog) == []


@pytest.mark.full
async def test_a_queue_warns_of_a_topic_that_it_has_not_created(caplog: pytest.LogCaptureFixture):
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("orders", 1)
        cluster.create_topic("again", 1)
        for topic in ("again", None):
            async with WorkQueue(cluster.bootstrap_servers, "g", "orders", retry=RetryTopic(topic)) as queue:
                for task in core_of(queue).engine._tasks:
                    if "retention" in task.get_name():
                        await task
    assert warnings(caplog) == ["retry topic 'again' has retention.ms=604800000"]
