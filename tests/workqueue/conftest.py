"""Fixtures of the tests of work queues."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    """Three embedded nodes in virtual time, with the topic `orders` of four partitions."""
    async with VirtualEnvironment.made() as environment:
        yield environment
