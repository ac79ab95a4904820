"""The stories of queues about copies, with transactional copies, on a real Apache Pulsar."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from asyncgroup.pulsar.client import PulsarClient
from tests.apache_pulsar import RunningPulsar
from tests.real.concurrent_stories import ConcurrentStories
from tests.stories.pulsar_side import side_of
from tests.stories.queue_stories import STORIES

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real, pytest.mark.full]

ABOUT: Final = ("dead_letter", "reject", "reconsume_later", "decoded", "ordering_key", "interceptors")
NAMES: Final = [name for name in STORIES if any(part in name for part in ABOUT)]
assert len(NAMES) >= 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(
    request: pytest.FixtureRequest, apache_pulsar: RunningPulsar
) -> AsyncIterator[ConcurrentStories]:
    """Run all selected stories at once: they mostly wait."""
    async with PulsarClient(apache_pulsar.service_url) as client:
        async with client.transaction():
            pass  # what looks for the coordinator is the client's, and outlives the stories

        async def tell(name: str) -> None:
            async with side_of(client, transactions=True) as side:
                await STORIES[name](side)

        async with ConcurrentStories.of(request, NAMES, tell, len(NAMES)) as told:
            yield told


@pytest.mark.parametrize("name", NAMES)
async def test_story(stories: ConcurrentStories, name: str) -> None:
    await stories.wait(name)
