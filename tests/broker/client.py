"""A client that knows frames and messages and nothing else, over asyncio's plain streams."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.wire import messages as m
from asyncgroup.wire.protocol import APIS, decode_response, encode_request, read_correlation_id

VERSIONS = m.ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
"""What a client asks first."""


class Disconnected(Exception):
    """The server closed the connection."""


class Client:
    """One connection to one node; requests may be sent ahead of their responses."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._sent = 0

    async def ask(self, request: Any, version: int | None = None) -> Any:
        """Send a request and wait for its response; the newest version unless one is given."""
        version, correlation_id = self.send(request, version)
        return await self.receive(request, version, correlation_id)

    def send(self, request: Any, version: int | None = None) -> tuple[int, int]:
        """Send a request; returns its version and its correlation id."""
        if version is None:
            version = APIS[request.API_KEY].versions.high
        self._sent += 1
        for piece in encode_request(request, version, self._sent, self._client_id):
            self._writer.write(piece)
        return version, self._sent

    def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._writer.write(data)

    def send_frame(self, data: bytes) -> None:
        """Send a frame with anything in it."""
        self.send_bytes(struct.pack(">i", len(data)) + data)

    async def receive(self, request: Any, version: int, correlation_id: int) -> Any:
        """The response to `request`, which must be the next one."""
        frame = await self.receive_frame()
        assert read_correlation_id(frame) == correlation_id
        return decode_response(APIS[request.API_KEY].response, version, frame)

    async def receive_frame(self) -> bytes:
        """The next frame without its size; raises Disconnected at the end."""
        try:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Disconnected(getattr(error, "partial", b"")) from error

    async def receive_bytes(self, most: int) -> bytes:
        """Some of what comes next, at most so many bytes; none at the end."""
        return await self._reader.read(most)

    async def disconnected(self) -> bytes:
        """Wait until the server closes; what came before that."""
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
    """A connection to a node, closed at the end."""
    address = cluster.nodes[node]
    reader, writer = await asyncio.open_connection(address.host, address.port)
    client = Client(reader, writer, client_id)
    try:
        yield client
    finally:
        await client.close()


async def is_alive(client: Client) -> bool:
    """Whether it is answered."""
    return bool((await client.ask(VERSIONS)).api_keys)
