"""Fixtures of brokers and queries for the tests of the source."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark.source.driver import broker_lookups
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import Queries
from tests.spark.source.reading import TOPIC


@pytest.fixture(autouse=True)
def _handler_of_sigterm() -> Iterator[None]:
    """Restore the handler that a reader replaces, as Spark's process of the reader is the test's process here."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[EmbeddedCluster]:
    """Two nodes; `orders` has four partitions, those of even numbers led by node 1, the others by node 2."""
    async with EmbeddedCluster(2, seed=1) as cluster:
        cluster.create_topic(TOPIC, 4)
        for number in range(4):
            cluster.move_leader(TOPIC, number, 1 + number % 2)
        yield cluster


@pytest.fixture
def query(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    """Create queries that look up partitions at each call."""
    monkeypatch.setattr(broker_lookups, "METADATA_MAX_AGE", 0.0)
    monkeypatch.setattr(broker_lookups, "METADATA_AGE_FACTOR", 0)
    queries = Queries(kafka_server)
    yield queries
    queries.end()
