"""A real Pulsar answers connections with credentials as the stories expect; they run on the embedded one as well."""

from __future__ import annotations

import asyncio

import pytest

from tests.pulsar.real.secured import Secured
from tests.pulsar_broker.net.credential_stories import STORIES, Tokens

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


async def test_parity(secured: Secured) -> None:
    token = secured.pulsar.token
    tokens = Tokens(token("admin"), token("admin", 3600.0), token("admin", 2.0), token("other"))
    url = secured.pulsar.service_url
    found = await asyncio.gather(*(story.run(url, tokens, lambda: None, 8.0) for story in STORIES.values()))
    assert dict(zip(STORIES, found, strict=True)) == {
        name: list(story.expected) for name, story in STORIES.items()
    }
