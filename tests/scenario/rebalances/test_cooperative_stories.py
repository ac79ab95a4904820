"""The stories about groups with cooperative members: they hold as for eager groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.stories import failover
from tests.stories.environment import Environment
from tests.stories.of_groups import OF_GROUPS
from tests.stories.virtual import VirtualEnvironment


@pytest.mark.parametrize("story", [*OF_GROUPS, failover.coordinator_dies], ids=lambda story: story.__name__)
async def test_story(env: VirtualEnvironment, story: Callable[[Environment], Awaitable[None]]) -> None:
    env.protocol = {"assignors": ("cooperative-sticky",)}
    await story(env)
