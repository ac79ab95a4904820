"""A real Pulsar does for transactions what the programs expect; they run on the embedded one as well."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any, Final

import pytest

from tests.apache_pulsar import RunningPulsar
from tests.pulsar_broker.transactions.transaction_stories import STORIES
from tests.pulsar_broker.wire_client import WireClient

pytestmark = [pytest.mark.real, pytest.mark.java]

FEW: Final = ("commit", "batch_indexes")


async def run(server: RunningPulsar, names: Iterable[str]) -> None:
    """Run programs at the same time, each with its topic."""

    async def seen(name: str) -> list[Any]:
        async with WireClient.of(server.service_url) as client:
            await client.connect_coordinator()
            return await STORIES[name].run(client, f"transactions-{name}-{uuid.uuid4().hex[:8]}")

    names = list(names)
    found = await asyncio.gather(*map(seen, names))
    assert dict(zip(names, found, strict=True)) == {name: STORIES[name].expected for name in names}


async def test_parity(apache_pulsar: RunningPulsar) -> None:
    await run(apache_pulsar, FEW)


@pytest.mark.full
async def test_parity_of_all(apache_pulsar: RunningPulsar) -> None:
    await run(apache_pulsar, set(STORIES) - set(FEW))
