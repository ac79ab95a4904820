"""Admin, topics: what it lists and describes, and its errors."""

from __future__ import annotations

import pytest

from asyncgroup import BrokerError, Cluster, ConfigError, ErrorCode
from asyncgroup.admin import Admin
from tests.stories.virtual import VirtualEnvironment


async def test_topics_are_listed(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.create_topic("payments", 2)
    listed = await admin.list_topics()
    assert {topic.name: topic.partitions for topic in listed}["payments"] == 2
    assert not any(topic.is_internal for topic in listed)
    assert [topic.name for topic in listed] == sorted(topic.name for topic in listed)


async def test_topics_are_described_each_by_itself(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("payments", 2)
    async with Cluster(env.bootstrap_servers) as cluster, Admin(cluster) as admin:
        found = await admin.describe_topics(["payments", "nothing"])
        topic = found.values_by_name["payments"]
        assert [partition.partition for partition in topic.partitions] == [0, 1]
        assert all(partition.leader in partition.isr for partition in topic.partitions)
        assert not topic.partitions[0].is_under_replicated
        error = found["nothing"]
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(BrokerError, match="describing topic 'nothing'"):
            found.raise_first()
        assert (len(found), set(found)) == (2, {"payments", "nothing"})


async def test_bad_arguments(env: VirtualEnvironment) -> None:
    with pytest.raises(ConfigError, match="timeout=-1"):
        Admin(env.bootstrap_servers, timeout=-1)
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(ConfigError, match="topic"):
            await admin.describe_topics(["no/topic"])
        assert not await admin.describe_topics([])
