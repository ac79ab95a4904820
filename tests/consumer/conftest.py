"""Fixture: two embedded brokers with a topic of six partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from tests.consumer.brokers import PARTITIONS


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", PARTITIONS)
        yield cluster
