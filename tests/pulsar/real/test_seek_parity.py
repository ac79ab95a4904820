"""What a real Pulsar does after seeks into a batch; the embedded one does the same (`tests/pulsar_broker/subscriptions/test_seeks.py`)."""

from __future__ import annotations

import uuid

import pytest

from tests.apache_pulsar import RunningPulsar
from tests.pulsar_broker.subscriptions.seek_stories import (
    positions,
    positions_expected,
    seeks,
    seeks_expected,
)
from tests.pulsar_broker.wire_client import WireClient

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


async def test_what_is_pushed_after_a_seek_into_a_batch(apache_pulsar: RunningPulsar) -> None:
    async with WireClient.of(apache_pulsar.service_url) as client:
        assert await seeks(client, f"seeks-{uuid.uuid4().hex[:8]}") == seeks_expected()
        assert await positions(client, f"seeks-{uuid.uuid4().hex[:8]}") == positions_expected()
