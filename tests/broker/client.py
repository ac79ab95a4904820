"""A minimal client that sends and receives single messages or frames, over asyncio streams."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import decode_response, encode_request, read_correlation_id

VERSIONS = m.ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
"""The first request of every client."""


class Disconnected(Exception):
    """The server closed the connection."""


class Client:
    """A connection to one node; requests may be pipelined."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._sent = 0

    async def ask(self, request: Any, version: int | None = None) -> Any:
        """Send a request, in the newest version unless one is given, and return its response."""
        version, correlation_id = self.send(request, version)
        return await self.receive(request, version, correlation_id)

    def send(self, request: Any, version: int | None = None) -> tuple[int, int]:
        """Send a request; return its version and its correlation id."""
        if version is None:
            version = APIS[request.API_KEY].versions.high
        self._sent += 1
        for piece in encode_request(request, version, self._sent, self._client_id):
            self._writer.write(piece)
        return version, self._sent

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        self._writer.write(data)

    def send_frame(self, data: bytes) -> None:
        """Send a frame with this content."""
        self.send_bytes(struct.pack(">i", len(data)) + data)

    async def receive(self, request: Any, version: int, correlation_id: int) -> Any:
        """Return the response to `request`, which must be the next frame."""
        frame = await self.receive_frame()
        assert read_correlation_id(frame) == correlation_id
        return decode_response(APIS[request.API_KEY].response, version, frame)

    async def receive_frame(self) -> bytes:
        """Return the next frame without its size. Raise Disconnected if the connection is closed."""
        try:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Disconnected(getattr(error, "partial", b"")) from error

    async def receive_bytes(self, most: int) -> bytes:
        """Return at most `most` received bytes; empty if the connection is closed."""
        return await self._reader.read(most)

    async def disconnected(self) -> bytes:
        """Wait until the server closes the connection; return the bytes received before."""
        try:
            return await self._reader.read(-1)
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@asynccontextmanager
async def connect(
    cluster: EmbeddedCluster, node: int = 1, client_id: str | None = "test"
) -> AsyncIterator[Client]:
    """Connect to a node; the connection is closed on exit."""
    address = cluster.nodes[node]
    reader, writer = await asyncio.open_connection(address.host, address.port)
    client = Client(reader, writer, client_id)
    try:
        yield client
    finally:
        await client.close()


async def is_alive(client: Client) -> bool:
    """Return whether the client gets a response to ApiVersions."""
    return bool((await client.ask(VERSIONS)).api_keys)
