"""`apache_pulsar` of the tests here is an embedded one, so that tests that were written for a real Pulsar run on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.apache_pulsar import RunningPulsar, SharedServer


@pytest.fixture(scope="module")
def apache_pulsar() -> Iterator[RunningPulsar]:
    """An embedded Pulsar with the admin API, on the event loop of a thread."""
    started: list[SharedServer] = []
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            async with EmbeddedPulsar(admin=True) as pulsar:
                started.append(SharedServer(pulsar.service_url, pulsar.admin_url))
                ready.set()
                await stop.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="embedded-pulsar")
    thread.start()
    ready.wait()
    assert started, "it did not start"
    yield started[0]
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()
