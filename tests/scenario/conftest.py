"""Every test here runs in virtual time (see `tests/conftest.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    """Three nodes, the topic `orders` with four partitions, the group `g`."""
    async with VirtualEnvironment.made() as environment:
        yield environment
