"""The stories of `tests/stories` on a real Apache Kafka; `tests/scenario` tells them in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.support import RunningKafka
from tests.stories import failover, membership
from tests.stories.environment import Environment
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.asyncio

STORIES = [
    membership.two_joiners,
    membership.graceful_leave,
    membership.a_leader_leaves,
    membership.partition_increase,
    membership.more_members_than_partitions,
    membership.a_member_changes_its_topics,
    membership.static_leader_restarts,
    failover.crash_found_by_expiry,
    failover.a_consumer_dies,
    failover.a_zombie_wakes,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_story(
    story: Callable[[Environment], Awaitable[None]], apache_kafka: RunningKafka, tmp_path: Path
):
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        await story(env)


async def test_coordinator_dies(apache_kafka_3: ApacheKafka, tmp_path: Path):
    async with RealEnvironment(apache_kafka_3.bootstrap_servers, tmp_path, apache_kafka_3) as env:
        await failover.coordinator_dies(env)
