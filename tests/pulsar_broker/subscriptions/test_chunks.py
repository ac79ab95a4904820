"""Chunks whose first one is with no consumer of a Shared subscription."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar_broker import EmbeddedPulsar
from tests.pulsar_broker.subscriptions.chunk_stories import (
    PERMITS_OF_CHUNKS,
    first_chunks_are_acknowledged,
    owner_has_left,
    owner_without_permits,
)
from tests.pulsar_broker.wire_client import WireClient

pytestmark = pytest.mark.virtual


async def test_what_is_left_of_a_value_goes_to_the_next_consumer_and_does_not_hold_other_messages() -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar,
        WireClient.of(pulsar.service_url) as client,
    ):
        assert await first_chunks_are_acknowledged(client, "t") == ["2:c2", "3:x", "4:y"]


async def test_all_chunks_of_a_value_go_to_the_next_consumer() -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar,
        WireClient.of(pulsar.service_url) as client,
    ):
        assert await owner_has_left(client, "t") == ["0:c0", "1:c1", "2:c2", "3:x", "4:y"]


async def test_each_chunk_takes_a_permit_of_the_consumer_that_has_the_first_ones() -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar,
        WireClient.of(pulsar.service_url) as client,
    ):
        assert await owner_without_permits(client, "t") == PERMITS_OF_CHUNKS
