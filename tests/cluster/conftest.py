"""Fixtures of the cluster tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup.cluster.client import ClusterClient
from tests.cluster.scripted import ScriptedCluster
from tests.cluster.support import HOSTS, cluster_of


@pytest.fixture(autouse=True)
def _no_asyncio_errors(no_asyncio_errors: None) -> None:
    """Fail each test here during which asyncio logs anything."""


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[ScriptedCluster]:
    """One scripted broker."""
    async with ScriptedCluster("10.0.0.1") as scripted:
        yield scripted


@pytest_asyncio.fixture
async def three() -> AsyncIterator[ScriptedCluster]:
    """Three scripted brokers."""
    async with ScriptedCluster(*HOSTS) as scripted:
        yield scripted


@pytest_asyncio.fixture
async def cluster(three: ScriptedCluster) -> AsyncIterator[ClusterClient]:
    """A client of the three scripted brokers."""
    async with cluster_of(three) as cluster:
        yield cluster
