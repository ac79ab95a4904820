"""What a real Pulsar keeps by default of what was acknowledged; the embedded one keeps the same if it has a retention."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.testing.apache_pulsar import ApachePulsar
from tests.pulsar_broker.topics.retention_stories import KEPT, values_kept

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]

NAMESPACE = "public/retention"


@pytest.mark.usefixtures("pulsar_at_hand")
async def test_what_it_keeps() -> None:
    properties = {"retentionCheckIntervalInSeconds": "2"}
    async with ApachePulsar(properties=properties) as pulsar, PulsarClient(pulsar.service_url) as client:
        await pulsar.admin.create_namespace(NAMESPACE)
        # its position is that of one more subscription
        await pulsar.admin.set_policy(NAMESPACE, "deduplication", False)
        found = await asyncio.gather(
            *(values_kept(client, f"{NAMESPACE}/t{acked}", acked, pulsar.admin.unload, 6.0) for acked in KEPT)
        )
    assert dict(zip(KEPT, found, strict=True)) == KEPT
