"""Fixtures of the tests of the Pulsar client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.pulsar.scripted import ScriptedPulsar


@pytest.fixture(autouse=True)
def _no_asyncio_errors(no_asyncio_errors: None) -> None:
    """Fail each test here during which asyncio logs anything."""


@pytest_asyncio.fixture
async def pulsar() -> AsyncIterator[ScriptedPulsar]:
    """One scripted broker."""
    async with ScriptedPulsar("10.0.0.1") as pulsar:
        yield pulsar


@pytest_asyncio.fixture
async def two_brokers() -> AsyncIterator[ScriptedPulsar]:
    """Two scripted brokers."""
    async with ScriptedPulsar("10.0.0.1", "10.0.0.2") as pulsar:
        yield pulsar
