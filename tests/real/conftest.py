"""Fixtures for the tests on a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.real.spark_support import Kafka
from tests.real.support import RunningKafka


@pytest_asyncio.fixture
async def kafka(apache_kafka: RunningKafka) -> AsyncIterator[Kafka]:
    """The node that all tests share, with the helpers of the Spark tests."""
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        yield kafka
