"""Fixtures of the tests of Admin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from asyncgroup.admin import Admin
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    """Three embedded nodes in virtual time, with the topic `orders` of four partitions."""
    async with VirtualEnvironment.made() as environment:
        yield environment


@pytest_asyncio.fixture
async def admin(env: VirtualEnvironment) -> AsyncIterator[Admin]:
    """An Admin of the nodes of `env`."""
    async with Admin(env.bootstrap_servers) as admin:
        yield admin
