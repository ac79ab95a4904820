"""A fetch that waits at the broker: nothing runs in the meantime, and the end of its connection is noticed.

Found on Python 3.12, whose transports never finish an empty last piece of `writelines`: they polled without end, and did not
report that the broker had closed the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import pytest

from asyncgroup import Consumer, ConsumerConfig, TransportError
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer import PartitionConsumer

pytestmark = pytest.mark.asyncio(loop_factories=["real", "eager"])

MOST_TURNS: Final = 100
"""In half a second; a transport that polls makes thousands."""


@contextlib.asynccontextmanager
async def parked(cluster: EmbeddedCluster) -> AsyncIterator[PartitionConsumer]:
    """A reader of an empty partition, whose fetch waits at the broker for 20 s."""
    config = ConsumerConfig(fetch_max_wait=20.0, client_id="reader")
    async with Consumer(cluster.bootstrap_servers, config) as consumer:
        reader = await consumer.partition("t", 0, "earliest")
        reading = asyncio.ensure_future(anext(reader))
        try:
            async with asyncio.timeout(10.0):
                while (
                    not (fetches := cluster.history.of("Fetch", client_id="reader")) or fetches[-1].response
                ):
                    await asyncio.sleep(0.01)
            yield reader
        finally:
            reading.cancel()
            await asyncio.wait([reading])


async def test_nothing_runs_while_a_fetch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    loop = asyncio.get_running_loop()
    run_once = loop._run_once  # type: ignore[attr-defined]

    def count() -> None:
        nonlocal turns
        turns += 1
        run_once()

    async with EmbeddedCluster(topics={"t": 1}) as cluster, parked(cluster):
        monkeypatch.setattr(loop, "_run_once", count)
        await asyncio.sleep(0.5)
    assert 0 < turns < MOST_TURNS


async def test_the_end_of_the_connection_of_a_waiting_fetch_is_noticed() -> None:
    async with EmbeddedCluster(topics={"t": 1}) as cluster, parked(cluster) as reader:
        errors = reader.errors()
        await cluster.stop_node(1)
        async with asyncio.timeout(10.0):
            assert isinstance(await anext(errors), TransportError)
