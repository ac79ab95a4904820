"""A small TCP proxy that cuts connections in the middle of a response."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Self

__all__ = ["TcpProxy", "connector_to"]

CHUNK = 64 * 1024


class TcpProxy:
    """Forwards connections of a client to servers on this machine; `through` returns the proxy's address for a server.

    `cut_responses(count, after)` closes the next `count` connections on which a server sends more than `after` bytes in
    one read, after that many bytes: the client receives only the beginning of a response. `reset_all()` ends all connections.
    """

    def __init__(self) -> None:
        self.cuts = 0
        """Number of connections cut so far."""
        self._to_cut = 0
        self._after = 0
        self._listeners: dict[tuple[str, int], asyncio.Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for listener in self._listeners.values():
            listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def through(self, host: str, port: int) -> tuple[str, int]:
        """Return the proxy's address for `host:port`."""
        server = self._listeners.get((host, port))
        if server is None:
            server = await asyncio.start_server(lambda r, w: self._serve(r, w, host, port), "127.0.0.1", 0)
            other = self._listeners.setdefault((host, port), server)
            if other is not server:
                server.close()
                server = other
        return server.sockets[0].getsockname()[:2]

    async def connect(self, host: str, port: int) -> socket.socket:
        """Connect to `host:port` through the proxy; can be used as a client's `connector`."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, await self.through(host, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def cut_responses(self, count: int, *, after: int) -> None:
        """Cut the next `count` connections on which a server sends more than `after` bytes in one read."""
        self._to_cut, self._after = count, after

    def reset_all(self) -> int:
        """Reset all connections at both ends; return how many clients were connected."""
        writers = list(self._writers)
        for writer in writers:
            sock = writer.get_extra_info("socket")
            # without the time to send what is left, the other end receives RST
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()
        return len(writers) // 2

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        this = asyncio.current_task()
        assert this is not None
        self._tasks.add(this)
        this.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer), contextlib.suppress(OSError, _ConnectionCut):
            far_reader, far_writer = await asyncio.open_connection(host, port)
            both_ends = {writer, far_writer}
            with contextlib.closing(far_writer):
                self._writers |= both_ends
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(self._requests(reader, far_writer))
                        both.create_task(self._responses(far_reader, writer))
                except* (OSError, _ConnectionCut):
                    writer.transport.abort()
                finally:
                    self._writers -= both_ends

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        raise _ConnectionCut

    async def _responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self._to_cut and len(data) > self._after:
                self._to_cut -= 1
                self.cuts += 1
                writer.write(data[: self._after])
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                raise _ConnectionCut
            writer.write(data)
            await writer.drain()
        raise _ConnectionCut


class _ConnectionCut(Exception):
    """Ends both directions of a connection."""


def connector_to(port: int) -> Callable[[str, int], Awaitable[socket.socket]]:
    """Return a client's `connector` for which all servers are at a port of this machine, that of a proxy in another process."""

    async def connect(_host: str, _port: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return sock

    return connect
