"""The stories of the work queue's face (`tests/stories/queue_stories.py`) on a real Apache Pulsar, all at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup.pulsar.client import PulsarClient
from tests.apache_pulsar import RunningPulsar
from tests.profiles import current_profile
from tests.real.concurrent_stories import ConcurrentStories
from tests.stories.pulsar_side import side_of
from tests.stories.queue_stories import STORIES

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]

NAMES = list(STORIES) if current_profile() == "full" else ["interceptors"]
"""The quick profile has one that is short."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(
    request: pytest.FixtureRequest, apache_pulsar: RunningPulsar
) -> AsyncIterator[ConcurrentStories]:
    """Run all selected stories at once: they mostly wait."""
    async with PulsarClient(apache_pulsar.service_url) as client:

        async def tell(name: str) -> None:
            async with side_of(client) as side:
                await STORIES[name](side)

        async with ConcurrentStories.of(request, NAMES, tell, len(NAMES)) as told:
            yield told


@pytest.mark.parametrize("name", NAMES)
async def test_story(stories: ConcurrentStories, name: str) -> None:
    await stories.wait(name)
