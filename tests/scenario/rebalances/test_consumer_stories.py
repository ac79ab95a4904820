"""The stories about groups with the consumer protocol (KIP-848): they hold as for classic groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from tests.stories import failover
from tests.stories.environment import CONSUMER, Environment
from tests.stories.of_groups import OF_GROUPS
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    """With the session timeout and heartbeat interval of the other stories, which are the group's here."""
    made = VirtualEnvironment.made(
        group_consumer_session_timeout=VirtualEnvironment.session_timeout,
        group_consumer_heartbeat_interval=VirtualEnvironment.heartbeat_interval,
        group_consumer_assignment_interval=0.1,
    )
    async with made as environment:
        environment.protocol = CONSUMER
        yield environment


@pytest.mark.parametrize("story", [*OF_GROUPS, failover.coordinator_dies], ids=lambda story: story.__name__)
async def test_story(env: VirtualEnvironment, story: Callable[[Environment], Awaitable[None]]) -> None:
    await story(env)
