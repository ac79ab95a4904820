"""Fixtures of the tests of consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from tests.consumer.brokers import PARTITIONS
from tests.consumer.support import make_consumer


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[EmbeddedCluster]:
    """Two embedded brokers with a topic of six partitions."""
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", PARTITIONS)
        yield cluster


@pytest_asyncio.fixture
async def consumer() -> PartitionConsumer:
    """A consumer of `orders-3` without records."""
    return make_consumer()
