"""The stories of the work queue's face (`tests/stories/queue_stories.py`) on the embedded Pulsar, in virtual time."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.stories.pulsar_side import side_of
from tests.stories.queue_stories import STORIES

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


@pytest.mark.parametrize("name", STORIES)
async def test_story(name: str) -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        side_of(client) as side,
    ):
        await STORIES[name](side)
