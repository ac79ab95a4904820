"""A real Pulsar answers clients that write anything as the stories expect, which run on the embedded one as well."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tests.apache_pulsar import RunningPulsar
from tests.pulsar_broker.net.hostile_stories import CONNECT, STORIES, heard

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


async def test_answers(apache_pulsar: RunningPulsar) -> None:
    async def seen(name: str) -> list[str]:
        story = STORIES[name]
        written = story.commands(f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}")
        return await heard(apache_pulsar.service_url, [*([CONNECT] if story.connects else []), *written])

    found = await asyncio.gather(*map(seen, STORIES))
    assert dict(zip(STORIES, found, strict=True)) == {name: story.expected for name, story in STORIES.items()}
