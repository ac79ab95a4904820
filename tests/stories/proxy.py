"""A small TCP proxy that cuts connections in the middle of a response."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Self

__all__ = ["TcpProxy"]

CHUNK = 64 * 1024


class TcpProxy:
    """Stands between a client and servers of this machine; `through` gives the address that leads to a server.

    `cut_responses(count, after)` lets the next `count` connections on which a server sends more than `after` bytes in
    one go die there: the client has read the beginning of a response, and nothing follows.
    """

    def __init__(self) -> None:
        self.cuts = 0
        """How many connections have been cut."""
        self._to_cut, self._after = 0, 0
        self._listeners: dict[tuple[str, int], asyncio.Server] = {}
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners.values():
            listener.close()
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)

    async def through(self, host: str, port: int) -> tuple[str, int]:
        """The address that leads to `host:port`."""
        server = self._listeners.get((host, port))
        if server is None:
            server = await asyncio.start_server(lambda r, w: self._serve(r, w, host, port), "127.0.0.1", 0)
            other = self._listeners.setdefault((host, port), server)
            if other is not server:
                server.close()
                server = other
        return server.sockets[0].getsockname()[:2]

    async def connect(self, host: str, port: int) -> socket.socket:
        """A socket to `host:port` by way of the proxy: what a client's `connector` has to be."""
        near = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        near.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(near, await self.through(host, port))
        except BaseException:
            near.close()
            raise
        return near

    def cut_responses(self, count: int, *, after: int) -> None:
        """Cut the next `count` connections on which a server sends more than `after` bytes at once."""
        self._to_cut, self._after = count, after

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        this = asyncio.current_task()
        assert this is not None
        self._pumps.add(this)
        this.add_done_callback(self._pumps.discard)
        with contextlib.closing(writer), contextlib.suppress(OSError, _Cut):
            far_reader, far_writer = await asyncio.open_connection(host, port)
            with contextlib.closing(far_writer):
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(self._requests(reader, far_writer))
                        both.create_task(self._responses(far_reader, writer))
                except* (OSError, _Cut):
                    writer.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        raise _Cut

    async def _responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self._to_cut and len(data) > self._after:
                self._to_cut -= 1
                self.cuts += 1
                writer.write(data[: self._after])
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                raise _Cut
            writer.write(data)
            await writer.drain()
        raise _Cut


class _Cut(Exception):
    """This connection is over."""
