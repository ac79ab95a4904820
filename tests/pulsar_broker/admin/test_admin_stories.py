"""The embedded Pulsar answers requests of the admin API as Apache Pulsar does."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.testing.apache_pulsar import PulsarAdmin
from tests.pulsar_broker.admin.admin_stories import STORIES, Answers

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", STORIES)
async def test_answers(name: str) -> None:
    async with EmbeddedPulsar(admin=True) as pulsar, PulsarClient(pulsar.service_url) as client:
        answers = Answers(PulsarAdmin(pulsar.admin_url))
        await STORIES[name].run(answers, client, "public/stories", "t")
    assert answers.seen == STORIES[name].expected
