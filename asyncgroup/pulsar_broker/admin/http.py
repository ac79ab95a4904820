"""HttpServer: one HTTP request on each connection, for the admin API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.net.servers import close_server
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure

__all__ = ["HttpRefusal", "HttpRequest", "HttpServer", "RawAnswer"]

MAX_BODY: Final = 1 << 20
_SECONDS: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_STATUS: Final = {
    ServerError.TOPIC_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ServerError.NOT_ALLOWED_ERROR: HTTPStatus.CONFLICT,
    ServerError.INCOMPATIBLE_SCHEMA: HTTPStatus.CONFLICT,
    ServerError.INVALID_TOPIC_NAME: HTTPStatus.PRECONDITION_FAILED,
    ServerError.TOPIC_TERMINATED_ERROR: HTTPStatus.METHOD_NOT_ALLOWED,
}


class HttpRefusal(Exception):
    """A request that is answered with a status, and a reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpRequest(NamedTuple):
    """A request."""

    method: str
    parts: list[str]
    """The parts of the path."""
    query: Mapping[str, str]
    body: Any
    """Decoded from JSON; None without one."""


class RawAnswer(NamedTuple):
    """An answer that is not JSON."""

    content: bytes
    headers: Mapping[str, str]


class HttpServer:
    """A server; `handle` returns the answer of a request: None, a RawAnswer, or what JSON can have.

    `handle` may raise HttpRefusal, ServerFailure and ConfigError. `url` is the server's address while it is open.
    """

    def __init__(self, handle: Callable[[HttpRequest], Any], host: str, port: int) -> None:
        self._handle = handle
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<HttpServer {self.url}>"

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and end the requests that are being served."""
        if self._server is not None:
            close_server(self._server)
            await cancel_and_wait(*self._tasks)
            await asyncio.sleep(0)  # an aborted transport closes its socket in the next step
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                size = int(found[1]) if found else 0
                body = await reader.readexactly(size) if size <= MAX_BODY else b""
                writer.write(self._response(head, body))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # TimeoutError is an OSError
            writer.transport.abort()
        except asyncio.CancelledError:  # the server is stopped: a task of asyncio's server has no reader
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    def _response(self, head: bytes, body: bytes) -> bytes:
        status, answer = HTTPStatus.OK, None
        try:
            answer = self._handle(_parse(head, body))
        except HttpRefusal as refusal:
            status, answer = refusal.status, {"reason": str(refusal)}
        except ServerFailure as failure:
            status = _STATUS.get(failure.code, HTTPStatus.INTERNAL_SERVER_ERROR)
            answer = {"reason": failure.text}
        except ConfigError as error:
            status, answer = HTTPStatus.PRECONDITION_FAILED, {"reason": str(error)}
        headers: Mapping[str, str] = {"Content-Type": "application/json"}
        if answer is None:
            status, content = HTTPStatus.NO_CONTENT, b""
        elif isinstance(answer, RawAnswer):
            content, headers = answer
        else:
            content = json.dumps(answer).encode()
        lines = [
            f"HTTP/1.1 {status} {status.phrase}",
            *(f"{name}: {value}" for name, value in headers.items()),
            f"Content-Length: {len(content)}",
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + content


def _parse(head: bytes, body: bytes) -> HttpRequest:
    line = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(line) != 3:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    method, target, _ = line
    url = urlsplit(target)
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    try:
        return HttpRequest(method, parts, dict(parse_qsl(url.query)), json.loads(body) if body else None)
    except ValueError:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "the body is no JSON") from None
