"""Fixtures: a cluster for administrative commands."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cli.admin_commands import Commands
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    """Three embedded nodes in virtual time, with the topic `orders` of four partitions."""
    async with VirtualEnvironment.made() as environment:
        yield environment


@pytest.fixture
def asyncgroup(env: VirtualEnvironment, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Runs administrative commands on the cluster of `env`."""
    return Commands(env.bootstrap_servers, capsys)
