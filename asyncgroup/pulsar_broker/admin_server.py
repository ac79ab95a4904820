"""AdminServer: the requests of Pulsar's admin API (REST) that test suites of clients make.

    GET  persistent/T/N                               PUT, DELETE  …/X        GET, PUT, POST, DELETE  …/X/partitions
    GET  …/X/stats, partitioned-stats, internalStats, subscriptions           PUT …/X/unload          POST …/X/terminate
    PUT, DELETE  …/X/subscription/S                   PUT  namespaces/T/N     PUT …/unload            POST …/deduplication

All are below `/admin/v2/`. Each connection has one request. Policies other than `deduplication` are refused with 412.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.net.servers import close_server
from asyncgroup.pulsar.wire.enums import InitialPosition
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.admin_stats import internal_stats, partitioned_stats, topic_stats
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.namespaces import Namespaces
from asyncgroup.pulsar_broker.subscription import TopicSubscription

__all__ = ["AdminServer", "Administered"]

MAX_BODY: Final = 1 << 20
_SECONDS: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_STATUS: Final = {
    ServerError.TOPIC_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ServerError.NOT_ALLOWED_ERROR: HTTPStatus.CONFLICT,
    ServerError.INVALID_TOPIC_NAME: HTTPStatus.PRECONDITION_FAILED,
}


class Administered(Protocol):
    """What the API changes."""

    namespaces: Namespaces

    def unload(self, topic: str) -> None:
        """Unload a topic, with its partitions."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, with its partitions."""
        ...

    def close_consumers(self, subscription: TopicSubscription) -> None:
        """Close the consumers of a subscription."""
        ...

    def set_deduplication(self, *, enabled: bool) -> None:
        """Whether topics drop messages that are stored already."""
        ...


class _Refusal(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Request(NamedTuple):
    method: str
    parts: list[str]
    """Of the path below `/admin/v2/`."""
    body: Any


class AdminServer:
    """The server; `url` is its address while it is open."""

    def __init__(self, pulsar: Administered, host: str, port: int) -> None:
        self._pulsar = pulsar
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<AdminServer {self.url}>"

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

    # --- HTTP -------------------------------------------------------------------------------------------------------------

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
        except _Refusal as refusal:
            status, answer = refusal.status, {"reason": str(refusal)}
        except ServerFailure as failure:
            status = _STATUS.get(failure.code, HTTPStatus.INTERNAL_SERVER_ERROR)
            answer = {"reason": failure.text}
        except ConfigError as error:
            status, answer = HTTPStatus.PRECONDITION_FAILED, {"reason": str(error)}
        if answer is None:
            status, content = HTTPStatus.NO_CONTENT, b""
        else:
            content = json.dumps(answer).encode()
        lines = [
            f"HTTP/1.1 {status} {status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + content

    # --- requests ---------------------------------------------------------------------------------------------------------

    def _handle(self, request: _Request) -> Any:
        method, parts = request.method, request.parts
        match parts:
            case ["namespaces", tenant, namespace]:
                return self._namespace(method, f"{tenant}/{namespace}")
            case ["namespaces", tenant, namespace, policy]:
                return self._policy(method, f"{tenant}/{namespace}", policy, request.body)
            case ["persistent", tenant, namespace] if method == "GET":
                return self._topics(f"{tenant}/{namespace}")
            case ["persistent", tenant, namespace, local, *rest]:
                name = TopicName.parse(f"persistent://{tenant}/{namespace}/{local}")
                return self._topic(method, name, rest, request.body)
        raise _Refusal(HTTPStatus.NOT_FOUND, f"{method} {'/'.join(parts)} is not served")

    def _namespace(self, method: str, name: str) -> None:
        if method != "PUT":
            raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} of a namespace is not served")
        if name in self._pulsar.namespaces.names:
            raise _Refusal(HTTPStatus.CONFLICT, "Namespace already exists")
        self._pulsar.namespaces.names.add(name)

    def _policy(self, method: str, namespace: str, policy: str, body: Any) -> None:
        if (method, policy) == ("PUT", "unload"):
            for name in self._topics(namespace):
                self._pulsar.unload(name)
        elif (method, policy) == ("POST", "deduplication"):
            self._pulsar.set_deduplication(enabled=body is True)
        else:
            raise _Refusal(HTTPStatus.PRECONDITION_FAILED, f"policy {policy} is not served")

    def _topics(self, namespace: str) -> list[str]:
        found = self._pulsar.namespaces.of_namespace(namespace)
        return [name for name in found if name.startswith("persistent://")]

    def _topic(self, method: str, name: TopicName, rest: list[str], body: Any) -> Any:
        namespaces = self._pulsar.namespaces
        match method, rest:
            case "PUT", []:
                namespaces.create(name)
            case "PUT", ["partitions"]:
                namespaces.create(name, _count(body))
            case "POST", ["partitions"]:
                namespaces.add_partitions(name, _count(body))
            case "GET", ["partitions"]:
                return {"partitions": namespaces.partitions_of(name, creates=False)}
            case "DELETE", [] | ["partitions"]:
                self._pulsar.delete_topic(str(name))
            case "PUT", ["unload"]:
                namespaces.parts_of(name)
                self._pulsar.unload(str(name))
            case "POST", ["terminate"]:
                return self._terminate(name)
            case "GET", [what]:
                return self._read(name, what)
            case _, ["subscription", subscription]:
                self._subscription(method, name, subscription, body)
            case _:
                raise _Refusal(HTTPStatus.PRECONDITION_FAILED, f"{method} {'/'.join(rest)} is not served")
        return None

    def _terminate(self, name: TopicName) -> Mapping[str, int]:
        topic = self._pulsar.namespaces.topic(name, creates=False)
        topic.terminate()
        last = topic.last_id
        return {"ledgerId": last.ledger_id, "entryId": last.entry_id}

    def _read(self, name: TopicName, what: str) -> Any:
        parts = self._pulsar.namespaces.parts_of(name)
        if what == "partitioned-stats":
            return partitioned_stats(parts)
        if what == "subscriptions":
            return sorted({each for topic in parts for each in topic.subscriptions})
        readers: dict[str, Callable[[Any], Any]] = {"stats": topic_stats, "internalStats": internal_stats}
        if what not in readers:
            raise _Refusal(HTTPStatus.PRECONDITION_FAILED, f"GET {what} is not served")
        return readers[what](self._pulsar.namespaces.topic(name, creates=False))

    def _subscription(self, method: str, name: TopicName, subscription: str, body: Any) -> None:
        for topic in self._pulsar.namespaces.parts_of(name):
            found = topic.subscriptions.get(subscription)
            if method == "PUT":
                if found is not None:
                    raise _Refusal(HTTPStatus.CONFLICT, "Subscription already exists for topic")
                early = body == "earliest"
                topic.subscription(
                    subscription, InitialPosition.EARLIEST if early else InitialPosition.LATEST
                )
            elif method == "DELETE":
                if found is None:
                    raise _Refusal(HTTPStatus.NOT_FOUND, "Subscription not found")
                self._pulsar.close_consumers(found)
                topic.subscriptions.pop(subscription, None)
            else:
                raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} of a subscription is not served")


def _count(body: Any) -> int:
    if not isinstance(body, int) or isinstance(body, bool) or body < 1:
        raise _Refusal(HTTPStatus.NOT_ACCEPTABLE, "Number of partitions should be greater than 0")
    return body


def _parse(head: bytes, body: bytes) -> _Request:
    line = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(line) != 3:
        raise _Refusal(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    method, target, _ = line
    path = urlsplit(target).path
    if not path.startswith("/admin/v2/"):
        raise _Refusal(HTTPStatus.NOT_FOUND, f"{path} is not below /admin/v2/")
    parts = [unquote(part) for part in path.removeprefix("/admin/v2/").split("/")]
    try:
        return _Request(method, parts, json.loads(body) if body else None)
    except ValueError:
        raise _Refusal(HTTPStatus.BAD_REQUEST, "the body is no JSON") from None
