"""A relay that ends TLS before a port, for suites of clients whose addresses have it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["tls_relay"]


@asynccontextmanager
async def tls_relay(port: int, to: int, certificate: Path, key: Path) -> AsyncIterator[None]:
    """Listen with TLS at a port of loopback, and pass everything on to another one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", to)
            try:
                await _both(_pump(reader, inner_writer), _pump(inner_reader, writer))
            finally:
                inner_writer.close()
        except (OSError, asyncio.CancelledError):  # an end of either side is that of both
            pass
        finally:
            writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context)
    try:
        yield
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _both(*pumps: object) -> None:
    running = [asyncio.ensure_future(pump) for pump in pumps]  # type: ignore[arg-type]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
