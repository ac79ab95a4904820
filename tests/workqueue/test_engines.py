"""The stories of the work queue's face (`tests/stories/queue_stories.py`) on each engine that runs in virtual time.

On Pulsar they run against a real one: `tests/pulsar/test_queue_stories.py`.
"""

from __future__ import annotations

import pytest

from tests.stories.queue_engines import SIDES
from tests.stories.queue_stories import STORIES

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("engine", SIDES)
async def test_story(engine: str, name: str) -> None:
    async with SIDES[engine]() as side:
        await STORIES[name](side)
