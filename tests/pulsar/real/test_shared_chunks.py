"""What a real Pulsar does with chunks whose first ones are with no consumer; the embedded one does what comes after 4.2."""

from __future__ import annotations

import uuid

import pytest

from tests.apache_pulsar import RunningPulsar
from tests.pulsar_broker.subscriptions.chunk_stories import (
    PERMITS_OF_CHUNKS,
    first_chunks_are_acknowledged,
    owner_has_left,
    owner_without_permits,
)
from tests.pulsar_broker.wire_client import WireClient

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


async def test_what_is_left_of_a_value_holds_all_later_messages(apache_pulsar: RunningPulsar) -> None:
    """With a release that mends apache/pulsar#26395 the outcome is that of `tests/pulsar_broker/subscriptions/test_chunks.py`."""
    async with WireClient.of(apache_pulsar.service_url) as client:
        assert await first_chunks_are_acknowledged(client, f"chunks-{uuid.uuid4().hex[:8]}") == ["3:x"]


async def test_chunks_stay_with_a_consumer_that_has_left(apache_pulsar: RunningPulsar) -> None:
    async with WireClient.of(apache_pulsar.service_url) as client:
        assert await owner_has_left(client, f"chunks-{uuid.uuid4().hex[:8]}") == ["3:x"]


async def test_each_chunk_takes_a_permit(apache_pulsar: RunningPulsar) -> None:
    async with WireClient.of(apache_pulsar.service_url) as client:
        found = await owner_without_permits(client, f"chunks-{uuid.uuid4().hex[:8]}")
        assert found == PERMITS_OF_CHUNKS
