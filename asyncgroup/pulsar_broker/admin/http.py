"""HttpServer: one HTTP request on each connection, for the admin API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from asyncgroup.errors import ConfigError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.net.servers import close_server
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure

__all__ = ["HttpRefusal", "HttpRequest", "HttpServer", "RawAnswer", "fields_of", "number_of"]

_log = escaping_logger("asyncgroup.pulsar_broker")

MAX_BODY: Final = 1 << 20
_SECONDS: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_MAX_DIGITS: Final = 18
"""Of a length: Python refuses to read numbers of thousands of digits."""
_CREDENTIALS: Final = tuple(
    re.compile(rb"\r\n%s:[ \t]*([^\r\n]*)" % name, re.IGNORECASE)
    for name in (b"authorization", b"x-pulsar-auth-method-name")
)
_STATUS: Final = {
    ServerError.TOPIC_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ServerError.NOT_ALLOWED_ERROR: HTTPStatus.CONFLICT,
    ServerError.INCOMPATIBLE_SCHEMA: HTTPStatus.CONFLICT,
    ServerError.INVALID_TOPIC_NAME: HTTPStatus.PRECONDITION_FAILED,
    ServerError.TOPIC_TERMINATED_ERROR: HTTPStatus.METHOD_NOT_ALLOWED,
    ServerError.SERVICE_NOT_READY: HTTPStatus.SERVICE_UNAVAILABLE,
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
    authorization: str
    """The header of this name."""
    auth_method: str
    """The header `X-Pulsar-Auth-Method-Name`."""


def fields_of(body: Any) -> Mapping[str, Any]:
    """Return a body that has to be a JSON object. Raises HttpRefusal."""
    if not isinstance(body, dict):
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, f"the body is no JSON object: {body!r:.100}")
    return body


def number_of(value: Any) -> float:
    """Return a value of a body that has to be a number, or the text of one. Raises HttpRefusal."""
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, f"{value!r:.100} is no number")
    return value if isinstance(value, int) else number


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
                size = int(found[1][:_MAX_DIGITS]) if found else 0
                body = await _read_body(reader, size)
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

    def _answer(self, head: bytes, body: bytes | None) -> tuple[HTTPStatus, Any]:
        """Return the status and the answer; one of an error is an object with its reason."""
        try:
            return HTTPStatus.OK, self._handle(_parse(head, body))
        except HttpRefusal as refusal:
            return refusal.status, {"reason": str(refusal)}
        except ServerFailure as failure:
            return _STATUS.get(failure.code, HTTPStatus.INTERNAL_SERVER_ERROR), {"reason": failure.text}
        except ConfigError as error:
            return HTTPStatus.PRECONDITION_FAILED, {"reason": str(error)}
        except Exception as error:  # noqa: BLE001  without an answer the client would wait for its timeout
            _log.warning("a request to the admin API failed", exc_info=True)
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"reason": repr(error)}

    def _response(self, head: bytes, body: bytes | None) -> bytes:
        status, answer = self._answer(head, body)
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


async def _read_body(reader: asyncio.StreamReader, size: int) -> bytes | None:
    """Return the body of a request; None if it is too large, after all of it: a client reads no answer while it writes."""
    if size <= MAX_BODY:
        return await reader.readexactly(size)
    while size:
        read = await reader.read(min(size, MAX_BODY))
        if not read:
            raise EOFError
        size -= len(read)
    return None


def _parse(head: bytes, body: bytes | None) -> HttpRequest:
    """Return a request; a body that was not read, as it is too large, is None. Raises HttpRefusal."""
    if body is None:
        raise HttpRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY} bytes")
    if _CHUNKED.search(head):
        raise HttpRefusal(HTTPStatus.LENGTH_REQUIRED, "a body needs a Content-Length here")
    line = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(line) != 3:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    method, target, _ = line
    try:
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = dict(parse_qsl(url.query))
    except ValueError:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "this is no path of the admin API") from None
    headers = [found[1].decode("latin-1") if (found := each.search(head)) else "" for each in _CREDENTIALS]
    try:
        return HttpRequest(method, parts, query, json.loads(body) if body else None, *headers)
    except (ValueError, RecursionError):
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "the body is no JSON") from None
