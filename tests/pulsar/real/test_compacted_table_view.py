"""Table views of compacted topics on a real Pulsar."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from asyncgroup.pulsar import PulsarClient
from tests.apache_pulsar import RunningPulsar

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


@pytest.mark.parametrize("last", [None, b"5"])
async def test_a_topic_that_was_compacted_to_its_end(
    apache_pulsar: RunningPulsar, last: bytes | None
) -> None:
    """The last message may be one that compaction has removed: the view is complete nevertheless."""
    topic = f"view-{uuid4().hex}"
    async with asyncio.timeout(60), PulsarClient(apache_pulsar.service_url) as client:
        async with client.producer(topic) as producer:
            await asyncio.gather(*(producer.send(b"%d" % each, key=f"k{each % 3}") for each in range(9)))
            await producer.send(last, key="k0")
        path = f"persistent/public/default/{topic}/compaction"
        await apache_pulsar.admin.request("PUT", path)
        while (await apache_pulsar.admin.request("GET", path))["status"] != "SUCCESS":
            await asyncio.sleep(0.1)
        wanted = {"k1": b"7", "k2": b"8"} | ({} if last is None else {"k0": last})
        async with client.table_view(topic) as view:
            assert view == wanted
