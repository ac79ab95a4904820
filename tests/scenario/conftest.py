"""Every test here runs in virtual time (see `tests/conftest.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.scenario.support import SessionEndHook, WorkHandler
from tests.scenario.three_protocols import made_for
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env(request: pytest.FixtureRequest) -> AsyncIterator[VirtualEnvironment]:
    """Three nodes, the topic `orders` with four partitions, the group `g`.

    Members have the default assignors, which are eager, except in tests with `in_each_protocol`.
    """
    protocol = getattr(request, "param", "eager")
    made = VirtualEnvironment.made() if protocol == "eager" else made_for(protocol, nodes=3)
    async with made as environment:
        yield environment


@pytest.fixture
def handler(env: VirtualEnvironment) -> WorkHandler:
    """A handler that marks each record."""
    return WorkHandler(env)


@pytest.fixture
def ends() -> SessionEndHook:
    """A hook that records why sessions end."""
    return SessionEndHook()
