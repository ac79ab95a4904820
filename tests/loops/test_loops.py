"""The client and the embedded broker on uvloop, with eager tasks (Python 3.12), and beside sniffio, in real time."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from tests.loops.stories import LIMIT, STORIES


@pytest.mark.asyncio(loop_factories=["eager", "uvloop"])
@pytest.mark.parametrize("name", STORIES)
async def test_story(name: str) -> None:
    async with asyncio.timeout(LIMIT):
        await STORIES[name]()


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("sniffio") is None, reason="sniffio is not installed")
@pytest.mark.asyncio(loop_factories=["real"])
@pytest.mark.parametrize("name", STORIES)
async def test_story_beside_sniffio(name: str) -> None:
    """anyio then asks sniffio for the running library, which knows none in a callback of the event loop."""
    async with asyncio.timeout(LIMIT):
        await STORIES[name]()
