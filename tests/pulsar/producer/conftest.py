"""Fixtures of the tests of Pulsar producers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.pulsar.producer.broker import Broker


@pytest.fixture(autouse=True)
def _no_asyncio_errors(no_asyncio_errors: None) -> None:
    """Fail each test here during which asyncio logs anything."""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A scripted broker at 127.0.0.1:6650, in virtual time."""
    async with Broker() as found:
        yield found
