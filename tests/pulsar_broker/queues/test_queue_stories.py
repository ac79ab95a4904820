"""The stories of the work queue's face (`tests/stories/queue_stories.py`) on the embedded Pulsar, in virtual time."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar.transactions import test_stories_of_copies
from tests.stories.pulsar_side import side_of
from tests.stories.queue_stories import STORIES

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


async def tell(name: str, *, transactions: bool) -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        side_of(client, transactions=transactions) as side,
    ):
        await STORIES[name](side)


@pytest.mark.parametrize("name", STORIES)
async def test_story(name: str) -> None:
    await tell(name, transactions=False)


@pytest.mark.parametrize("name", test_stories_of_copies.NAMES)
async def test_story_of_transactional_copies(name: str) -> None:
    await tell(name, transactions=True)
