"""Fixtures of the broker tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from tests.broker.client import Client, connect
from tests.broker.harness import Harness


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """One node, without topics."""
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest_asyncio.fixture
async def client(cluster: EmbeddedCluster) -> AsyncIterator[Client]:
    """A connection to the node of `cluster`."""
    async with connect(cluster) as client:
        yield client


@pytest.fixture
def harness() -> Harness:
    """A group coordinator with the default configuration."""
    return Harness()
