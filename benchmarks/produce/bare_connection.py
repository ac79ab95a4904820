"""The bound of one caller in asyncio: one request, encoded once, sent over and over on a bare connection.

Nothing is chosen, numbered (so it is not idempotent), encoded or decoded in between: no client that waits for each
acknowledgement on asyncio's own event loop can be faster. The first bootstrap server must be the leader.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup.errors import BrokerError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_response, encode_request
from asyncgroup.wire.records import BatchBuilder
from benchmarks.produce.load import Load

__all__ = ["run"]

VERSION = 12
"""The newest Produce version with topic names instead of ids."""


class _Connection(asyncio.Protocol):
    """A connection with one request in flight."""

    def __init__(self) -> None:
        self.response: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # of a TCP connection

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.response is not None and len(self._received) >= 4 + int.from_bytes(self._received[:4], "big"):
            received, self._received = self._received, b""
            self.response.set_result(received)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.response is not None and not self.response.done():
            self.response.set_exception(exc or ConnectionResetError("the broker closed the connection"))

    async def request(self, data: bytes) -> bytes:
        """Send the bytes; return those of the response."""
        if self.transport.is_closing():
            raise ConnectionResetError("the broker closed the connection")
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.response = response
        self.transport.write(data)
        return await response


def _request(load: Load) -> bytes:
    """Return a Produce request with one record."""
    builder = BatchBuilder(load.settings.codec)
    builder.append(-1, None, load.values[0], load.headers)
    cls = m.ProduceRequest
    partition = cls.PartitionProduceData(index=0, records=builder.build())
    topic = cls.TopicProduceData(name=load.settings.topic, partition_data=[partition])
    return b"".join(encode_request(cls(acks=-1, timeout_ms=30_000, topic_data=[topic]), VERSION, 1, "bare"))


def _check(response: bytes) -> None:
    """Raise BrokerError unless the records were appended."""
    body = decode_response(m.ProduceResponse, VERSION, response[4:])
    if code := body.responses[0].partition_responses[0].error_code:
        raise BrokerError(code, "a record of the bare connection")


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Write for the given time; return the figures."""
    load = Load(given)
    host, _, port = load.settings.bootstrap_servers.partition(",")[0].rpartition(":")
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(_Connection, host, int(port))
    request = _request(load)
    response = b""

    async def send(_: bytes) -> None:
        nonlocal response
        response = await connection.request(request)

    try:
        await send(b"")
        _check(response)
        load.begin()
        await load.call_concurrently(send)
        _check(response)
        return load.end()
    finally:
        transport.close()
