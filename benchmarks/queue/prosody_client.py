"""prosody-events (Rust with asyncio handlers): ordered by key, retries kept in Cassandra. Runs in a separate environment.

Its pipeline mode retries without a limit. Keys have to be text, values JSON.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Final

from prosody import (  # type: ignore[import-not-found]
    Context,
    EventHandler,
    ExciseMessage,
    Message,
    ProsodyClient,
    Timer,
    TransientError,
)

from benchmarks.queue.load import POISON, Load

__all__ = ["run"]

UNCOMMITTED: Final = 1000
"""Records read ahead. With its default of 64 it handles a tenth of the records per second."""


class _Handler(EventHandler):  # type: ignore[misc]
    def __init__(self, load: Load) -> None:
        self._load = load

    async def on_message(self, context: Context, message: Message) -> None:  # noqa: ARG002
        load = self._load
        settings = load.settings
        if not load.has_begun:
            load.begin()
        if settings.kind == "block":
            await load.block()
        elif settings.kind == "work" and (seconds := load.seconds(message.offset)):
            await asyncio.sleep(seconds)
        if message.key[0] == chr(POISON):
            raise TransientError from load.fail(message.key.encode())
        if settings.kind == "fresh":
            load.delays.append((time.monotonic_ns() - message.payload["at"]) / 1e9)
        load.done()

    async def on_excise(self, context: Context, message: ExciseMessage) -> None:
        pass

    async def on_timer(self, context: Context, timer: Timer) -> None:
        pass


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """A handler that returns acknowledges its record; one that raises has it delivered again after a timer."""
    load = Load(given)
    await load.wait_for_start()
    settings = load.settings
    client = await ProsodyClient.create(
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        source_system="benchmark",
        subscribed_topics=settings.topic,
        mode="pipeline",
        max_concurrency=settings.concurrency,
        max_uncommitted=UNCOMMITTED,
        retry_base=settings.retry,
        max_retry_delay=settings.retry_max,
        defer_base=settings.retry,
        defer_max_delay=settings.retry_max,
        monopolization_enabled=False,  # it would refuse keys whose handlers run most of the time
        probe_port=None,
        cassandra_nodes=os.environ["PROSODY_CASSANDRA_NODES"],
    )
    await client.subscribe(_Handler(load))
    await load.finished.wait()
    figures = load.figures()
    # its shutdown waits for handlers that are blocked, and for records that wait for a retry
    try:
        async with asyncio.timeout(5.0):
            await client.shutdown()
    except TimeoutError:
        pass
    return figures
