"""Protocols that record their callbacks, and connected pairs of them, for tests of transports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

HOST = "127.0.0.1"

C = TypeVar("C", bound="Recorder")
S = TypeVar("S", bound="Recorder")


class Recorder(asyncio.BaseProtocol):
    """Records the names of its callbacks in `calls`, the received bytes in `data`, and the end of the connection in `lost`."""

    transport: asyncio.Transport

    def __init__(self, *, keep_open: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.keep_open = keep_open
        self.calls: list[str] = []
        self.data = bytearray()
        self.made: asyncio.Future[None] = loop.create_future()
        self.eof: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.calls.append("made")
        self.made.set_result(None)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        self.eof.set_result(None)
        return self.keep_open

    def connection_lost(self, error: Exception | None) -> None:
        self.calls.append("lost")
        self.lost.set_result(error)

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")

    def note(self, call: str) -> None:
        self.calls.append(call)
        self._changed.set()

    def got(self, data: bytes | bytearray) -> None:
        self.data += data
        self.note("data")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true; it is evaluated again after each recorded callback."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def received(self, size: int) -> bytes:
        """Wait until at least `size` bytes were received, and return all of them."""
        await self.until(lambda: len(self.data) >= size)
        return bytes(self.data)


class Reader(Recorder, asyncio.Protocol):
    """A Recorder with `data_received`."""

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.got(data)


class BufferedReader(Recorder, asyncio.BufferedProtocol):
    """A Recorder with a buffer of `size` bytes; `chunks` records how many bytes of it were filled each time."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._buffer = bytearray(size)
        self.chunks: list[int] = []

    def get_buffer(self, sizehint: int) -> bytearray:
        assert sizehint == -1
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.chunks.append(nbytes)
        self.got(self._buffer[:nbytes])


@dataclass
class Pair(Generic[C, S]):
    """Both ends of one connection."""

    client: C
    server: S
    listener: asyncio.AbstractServer
    port: int
    errors: list[dict[str, object]] = field(default_factory=list)
    """The contexts that were reported to the loop's exception handler."""


def port_of(server: asyncio.AbstractServer) -> int:
    """Return the port of the only address of `server`."""
    port: int = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    return port


@contextlib.asynccontextmanager
async def connected(make_client: Callable[[], C], make_server: Callable[[], S]) -> AsyncIterator[Pair[C, S]]:
    """Yield connected protocols of a client and a server; close both ends and the listener at the end."""
    loop = asyncio.get_running_loop()
    accepted: list[S] = []
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))

    def factory() -> S:
        accepted.append(make_server())
        return accepted[-1]

    listener = await loop.create_server(factory, HOST, 0)
    port = port_of(listener)
    _, client = await loop.create_connection(make_client, HOST, port)
    while not accepted:
        await asyncio.sleep(0)
    server = accepted[0]
    await server.made
    try:
        yield Pair(client, server, listener, port, errors)
    finally:
        listener.close()
        for end in (client, server):
            if not end.lost.done():
                end.transport.abort()
            await end.lost
