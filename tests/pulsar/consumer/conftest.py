"""Fixtures of the tests of Pulsar consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.pulsar.consumer.broker import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A model of a broker at 127.0.0.1:6650, in virtual time."""
    async with Broker() as found:
        yield found
