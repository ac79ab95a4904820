"""A real Pulsar answers requests of the admin API as the stories expect, which run on the embedded one as well."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from asyncgroup.pulsar.client import PulsarClient
from tests.apache_pulsar import RunningPulsar
from tests.pulsar_broker.admin.admin_stories import STORIES, Answers

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


async def test_answers(apache_pulsar: RunningPulsar) -> None:
    async def seen(name: str) -> object:
        answers = Answers(apache_pulsar.admin)
        await STORIES[name].run(answers, client, f"public/{name}-{uuid.uuid4().hex[:8]}", "t")
        return answers.seen

    async with PulsarClient(apache_pulsar.service_url) as client:
        found = await asyncio.gather(*map(seen, STORIES))
    assert dict(zip(STORIES, found, strict=True)) == {name: story.expected for name, story in STORIES.items()}
