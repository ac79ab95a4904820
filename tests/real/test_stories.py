"""The stories of `tests/stories` on a real Apache Kafka; `tests/scenario` runs those about groups in virtual time.

They mostly wait, for sessions to expire or for a Kafka to restart, so that they run concurrently. Stories that kill or
damage a broker share one of their own, one after the other.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.profiles import thinned
from tests.real.concurrent_stories import ConcurrentStories, selected
from tests.real.support import NEEDS_KAFKA_4, RunningKafka
from tests.stories import failover, faults, membership
from tests.stories.environment import CONSUMER, Environment
from tests.stories.of_groups import OF_GROUPS
from tests.stories.proxy import TcpProxy
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 6
"""Stories that run at the same time: more would compete for the cores."""


OF_CONSUMERS = [
    membership.two_joiners,
    membership.graceful_leave,
    membership.a_leader_leaves,
    membership.partition_increase,
    membership.a_member_changes_its_topics,
    membership.static_leader_restarts,
]
"""Those that do not wait for the end of a session, for members of the consumer protocol."""


class SlowEnvironment(RealEnvironment):
    """An environment with a session timeout that is long enough for a machine on which other Kafkas start.

    The stories use multiples of the session timeout as time limits.
    """

    session_timeout = 6.0
    heartbeat_interval = 0.5


class CooperativeEnvironment(SlowEnvironment):
    """Members whose sessions last over rebalances."""

    protocol: Mapping[str, Any] = MappingProxyType({"assignors": ("cooperative-sticky",)})


class ConsumerProtocolEnvironment(RealEnvironment):
    """Members of the consumer protocol; their session timeout is Kafka's default, which is also its shortest one."""

    session_timeout = 45.0
    protocol: Mapping[str, Any] = CONSUMER


class Kafkas:
    """The Kafkas that stories can use."""

    def __init__(self, one: RunningKafka, three: ApacheKafka | None) -> None:
        self.servers = one.bootstrap_servers
        self.three = three
        self._turn = asyncio.Lock()
        self._to_break: ApacheKafka | None = None

    @asynccontextmanager
    async def to_break(self) -> AsyncIterator[ApacheKafka]:
        """Yield a running node that one story after the other may damage."""
        async with self._turn:
            if self._to_break is None:
                self._to_break = await ApacheKafka().__aenter__()
            yield self._to_break

    async def aclose(self) -> None:
        if self._to_break is not None:
            await self._to_break.__aexit__()


Story = Callable[[Kafkas, Path], Awaitable[None]]


async def the_broker_is_killed(kafkas: Kafkas, directory: Path) -> None:
    async with (
        kafkas.to_break() as kafka,
        SlowEnvironment(kafka.bootstrap_servers, directory, kafka) as env,
    ):
        await faults.the_broker_is_killed(env, lambda: kafka.kill(1), lambda: kafka.start_node(1))


async def a_log_is_truncated(kafkas: Kafkas, directory: Path) -> None:
    async with (
        kafkas.to_break() as kafka,
        SlowEnvironment(kafka.bootstrap_servers, directory, kafka) as env,
    ):

        def lose_records() -> None:
            kafka.kill(1)
            for partition in range(4):
                shutil.rmtree(kafka.data(1) / f"{env.topic}-{partition}")
            kafka.start_node(1)

        await faults.a_log_is_truncated(env, lose_records)


async def the_broker_hangs(kafkas: Kafkas, directory: Path) -> None:
    async with (
        kafkas.to_break() as kafka,
        SlowEnvironment(kafka.bootstrap_servers, directory, kafka) as env,
    ):
        await faults.the_broker_hangs(env, lambda: kafka.suspend(1), lambda: kafka.resume(1))


async def a_topic_is_recreated(kafkas: Kafkas, directory: Path) -> None:
    async with SlowEnvironment(kafkas.servers, directory) as env:
        await faults.a_topic_is_recreated(env)


async def connections_are_cut(kafkas: Kafkas, directory: Path) -> None:
    async with (
        TcpProxy() as proxy,
        SlowEnvironment(kafkas.servers, directory, connector=proxy.connect) as env,
    ):
        await faults.connections_are_cut(env, proxy)


async def coordinator_dies(kafkas: Kafkas, directory: Path) -> None:
    assert kafkas.three is not None
    async with SlowEnvironment(kafkas.three.bootstrap_servers, directory, kafkas.three) as env:
        await failover.coordinator_dies(env)


def of_groups(
    story: Callable[[Environment], Awaitable[None]],
    suffix: str = "",
    environment: type[RealEnvironment] = SlowEnvironment,
) -> Story:
    async def run_story(kafkas: Kafkas, directory: Path) -> None:
        async with environment(kafkas.servers, directory) as env:
            await story(env)

    run_story.__name__ = story.__name__ + suffix
    return run_story


BY_CONSUMERS = "_by_the_consumer_protocol"

_ALL: list[Story] = [
    the_broker_is_killed,
    the_broker_hangs,
    a_log_is_truncated,
    coordinator_dies,
    connections_are_cut,
    a_topic_is_recreated,
    *map(of_groups, OF_GROUPS),
    *(of_groups(story, "_cooperatively", CooperativeEnvironment) for story in thinned(OF_GROUPS, every=4)),
    *(
        of_groups(story, BY_CONSUMERS, ConsumerProtocolEnvironment)
        for story in thinned(OF_CONSUMERS, every=4)
    ),
]
STORIES = {story.__name__: story for story in _ALL}
"""The stories by name, the longest first."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(
    request: pytest.FixtureRequest, apache_kafka: RunningKafka, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ConcurrentStories]:
    """The selected stories, running."""
    names = selected(request, STORIES)
    three = request.getfixturevalue("apache_kafka_3") if coordinator_dies.__name__ in names else None
    kafkas = Kafkas(apache_kafka, three)
    partials = {
        name: functools.partial(STORIES[name], kafkas, tmp_path_factory.mktemp(name)) for name in names
    }
    try:
        async with ConcurrentStories(partials, AT_ONCE) as running_stories:
            yield running_stories
    finally:
        await kafkas.aclose()


OF_THREE_NODES = [coordinator_dies.__name__]


@pytest.mark.xdist_group("kafka_3")
@pytest.mark.usefixtures("kafka_at_hand")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=NEEDS_KAFKA_4 if name.endswith(BY_CONSUMERS) else ())
        for name in STORIES
        if name not in OF_THREE_NODES
    ],
)
async def test_story(stories: ConcurrentStories, name: str) -> None:
    await stories.wait(name)


@pytest.mark.xdist_group("kafka_3")
@pytest.mark.usefixtures("apache_kafka_3")
@pytest.mark.parametrize("name", OF_THREE_NODES)
async def test_story_of_three_nodes(stories: ConcurrentStories, name: str) -> None:
    """The nodes are needed until here; the story has begun with the others."""
    await stories.wait(name)
