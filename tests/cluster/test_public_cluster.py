"""The public Cluster: what a user may call, and that its client does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup import (
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerGroup,
    OffsetManager,
    Producer,
    TopicPartition,
)
from asyncgroup.errors import ClosedError
from asyncgroup.wire import messages as m
from tests.cluster.scripted import ScriptedCluster
from tests.cluster.support import HOSTS, LIST_GROUPS, answer_list_groups

pytestmark = pytest.mark.virtual

MEMBERS = [
    "aclose",
    "all_topics",
    "config",
    "coordinators",
    "hooks",
    "is_open",
    "leader",
    "partitions",
    "refresh",
    "request",
    "request_any",
    "topics",
    "track",
    "tracking",
    "untrack",
    "view",
    "wait_updated",
]


async def test_its_members_are_what_a_user_may_call() -> None:
    cluster = Cluster("localhost:9092")
    assert [name for name in dir(cluster) if not name.startswith("_")] == MEMBERS


async def test_metadata_and_requests() -> None:
    async with ScriptedCluster(*HOSTS) as scripted:
        scripted.topics = {"orders": {0: (1, 0), 1: (2, 0)}}
        scripted[1].script["ListGroups"] = answer_list_groups
        cluster = Cluster(scripted.servers, ClientConfig())
        assert repr(cluster) == repr(cluster._inner)
        async with cluster:
            assert cluster.is_open
            with cluster.tracking(["orders"]):
                await cluster.refresh()
                assert cluster.view.topics["orders"].numbers == [0, 1]
                assert await cluster.partitions("orders") == [0, 1]
                assert await cluster.leader(TopicPartition("orders", 1)) == 2
            await cluster.refresh()
            assert "orders" not in cluster.view.topics
            assert sorted(await cluster.all_topics()) == ["orders"]
            assert await cluster.request(1, LIST_GROUPS) == m.ListGroupsResponse()
        assert not cluster.is_open


async def test_entering_a_second_time_is_refused_and_leaves_it_open() -> None:
    async with ScriptedCluster(*HOSTS) as scripted, Cluster(scripted.servers) as cluster:
        with pytest.raises(ClosedError, match="already entered"):
            await cluster.__aenter__()
        assert cluster.is_open
        await cluster.refresh()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Producer, "Producer"),
        (Consumer, "Consumer"),
        (lambda servers: OffsetManager(servers, "g"), "OffsetManager of group 'g'"),
        (lambda servers: ConsumerGroup(servers, "g"), "group 'g'"),
    ],
)
async def test_entering_a_client_a_second_time_names_the_client(
    make: Callable[[str], Any], name: str
) -> None:
    async with ScriptedCluster(*HOSTS) as scripted, make(scripted.servers) as client:
        with pytest.raises(ClosedError, match=f"^{name} was already entered; create a new one$"):
            await client.__aenter__()
