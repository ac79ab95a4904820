"""Fixtures of the tests of transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from tests.producer.transactions.support import cluster_with_topics, producer_of


@pytest.fixture(autouse=True)
def _transaction_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalize the transaction version that the test's parameter `version` names."""
    call = getattr(request.node, "callspec", None)
    if call is not None and "version" in call.params:
        monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", call.params["version"])


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """Three nodes with the topics `orders` and `input`."""
    async with cluster_with_topics() as cluster:
        yield cluster


@pytest_asyncio.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    """A transactional producer connected to `cluster`."""
    async with producer_of(cluster) as producer:
        yield producer
