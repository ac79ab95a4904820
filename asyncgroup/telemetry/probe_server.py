"""serve_probes: a small HTTP/1.1 server for probes and metrics, on the event loop of the clients.

One request a connection. A head is limited in size and a connection in time. If too many are open, the oldest one is closed: a
client that sends nothing cannot keep probes out.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from http import HTTPStatus
from typing import Final, Self

from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.net.servers import close_server
from asyncgroup.telemetry.client_metrics import ClientMetrics
from asyncgroup.telemetry.probe_responses import ProbeResponses, Response
from asyncgroup.telemetry.probes import HasHealth

__all__ = ["ProbeServer", "serve_probes"]

MAX_HEAD: Final = 8192
"""Bytes of a request's line and headers."""

MAX_SECONDS: Final = 5.0
"""Seconds from the start of a connection to its end, the response included."""

MAX_CONNECTIONS: Final = 64
"""Connections that are open at a time; above that the oldest one is closed."""

MAX_UNREAD: Final = 256 * 1024
"""Bytes after the head that are read and dropped, so that a client that still sends gets its response."""

_REQUEST: Final = re.compile(rb"([A-Z]{1,20}) ([!-~]+) HTTP/1\.[01]\r\n")
# blanks around the value are left to `strip`: an expression for them would try each division of many
_ACCEPT: Final = re.compile(rb"^accept:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)

_BAD_REQUEST: Final = Response(400, "text/plain; charset=utf-8", b"not a request of HTTP/1.1\n")
_TOO_LARGE: Final = Response(431, "text/plain; charset=utf-8", b"the request's head is too large\n")


def serve_probes(
    port: int, *clients: HasHealth, metrics: ClientMetrics | None = None, host: str = "127.0.0.1"
) -> ProbeServer:
    """Return a server of `/live`, `/ready` and, if `metrics` are given, `/metrics`, to be entered:

        async with ConsumerGroup("localhost:9092", "orders", hooks=[metrics]) as group, serve_probes(8080, group, metrics=metrics):
            await group.run("orders", handler)

    `/live` and `/ready` answer 200 or 503, with the reasons as JSON. It listens on the loopback interface; `host="0.0.0.0"` is
    what a container needs. `port` 0 is a free port, which `ProbeServer.port` has. Raises ConfigError for an invalid port or a client without
    `health()`, TelemetryUnavailable for metrics if prometheus_client is not installed; entering raises OSError if the port is in use.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65_535:
        raise ConfigError("port", port, "a number from 0 to 65535; 0 means any free port")
    return ProbeServer(host, port, ProbeResponses(clients, metrics))


class ProbeServer:
    """The server that `serve_probes` returns; it runs while it is entered."""

    def __init__(self, host: str, port: int, responses: ProbeResponses) -> None:
        self.host = host
        self._port = port
        self._responses = responses
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """The connections that are open, the oldest first."""
        self._closing = False

    def __repr__(self) -> str:
        state = "not open" if self._server is None else f"{len(self._connections)} connections"
        return f"<ProbeServer http://{self.host}:{self._port}: {state}>"

    @property
    def port(self) -> int:
        """The port; 0 if any was asked for and it is not open yet."""
        return self._port

    async def __aenter__(self) -> Self:
        if self._server is not None:
            raise UsageError("the probe server was entered before: create a new one")
        self._server = await asyncio.start_server(self._serve, self.host, self._port, limit=MAX_HEAD)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening, and close the connections that are open. Safe to call twice."""
        if self._server is not None:
            self._closing = True
            close_server(self._server)
            connections = list(self._connections)
            await cancel_and_wait(*connections)
            await asyncio.sleep(0)  # an aborted transport closes its socket in the next step
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closing:  # accepted just before
            writer.transport.abort()
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).transport.abort()
            oldest.cancel()
        self._connections[task] = writer
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await self._answer(reader, writer)
        except (OSError, EOFError):  # the client has gone, or was too slow: TimeoutError is an OSError
            writer.transport.abort()
        except asyncio.CancelledError:  # closed, or the oldest of too many: its task has no reader
            writer.transport.abort()
        finally:
            self._connections.pop(task, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request and write its response."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            request, response = None, _TOO_LARGE
        else:
            request = _REQUEST.match(head)
            response = _BAD_REQUEST if request is None else self._respond(request, head)
        is_head = request is not None and request[1] == b"HEAD"
        writer.write(_head(response) + (b"" if is_head else response.body))
        await writer.drain()
        writer.write_eof()
        # a close with unread bytes would reset the connection, perhaps before the client has read the response
        unread = MAX_UNREAD
        while unread > 0 and (rest := await reader.read(MAX_HEAD)):
            unread -= len(rest)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def _respond(self, request: re.Match[bytes], head: bytes) -> Response:
        accept = b",".join(each.strip(b" \t") for each in _ACCEPT.findall(head))
        method, target = (part.decode("latin-1") for part in request.groups())
        return self._responses.respond(method, target, accept.decode("latin-1"))


def _head(response: Response) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if response.allow:
        lines.append(f"Allow: {response.allow}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
