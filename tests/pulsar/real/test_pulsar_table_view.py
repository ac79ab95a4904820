"""A table view on a real Pulsar; `tests/pulsar_broker` runs the same on the embedded one."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from asyncgroup.pulsar import PulsarClient
from tests.apache_pulsar import RunningPulsar

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


async def test_a_table_view_of_a_topic_and_what_follows(apache_pulsar: RunningPulsar) -> None:
    topic = f"view-{uuid4().hex}"
    async with asyncio.timeout(60), PulsarClient(apache_pulsar.service_url) as client:
        async with client.producer(topic) as producer:
            for key, value in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", None), ("c", b"3")):
                await producer.send(value, key=key)
            async with client.table_view(topic) as view:
                assert view == {"a": b"2", "c": b"3"}
                changes = view.changes()
                await producer.send(b"", key="c")
                assert await anext(changes) == ("c", None)
                await producer.send(b"4", key="d")
                await view.refresh()
                assert view == {"a": b"2", "d": b"4"}
