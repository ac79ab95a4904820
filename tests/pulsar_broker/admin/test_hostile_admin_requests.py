"""Requests to the admin API that no client should make: each has an answer that says what is wrong, and others are served."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.testing.apache_pulsar import PulsarAdmin
from tests.profiles import thinned

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_asyncio_errors")]

T = "/admin/v2/persistent/public/default/t"
N = "/admin/v2/namespaces/public/default"
S = "/admin/v2/schemas/public/default/t"


async def raw(pulsar: EmbeddedPulsar, data: bytes) -> tuple[int, Any]:
    """Write bytes to the API; return the status and the answer."""
    host, _, port = pulsar.admin_url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(10):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    is_json = body and b"application/json" in head
    return int(head.split()[1]), json.loads(body) if is_json else body or None


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


REFUSED: list[tuple[int, bytes]] = [
    (400, b"x\r\n\r\n"),
    (400, b"GET /\r\n\r\n"),
    (400, request("GET", "//[")),
    (400, request("PUT", f"{T}/partitions", b"{")),
    (400, request("PUT", f"{T}/partitions", b"[" * 100_000)),
    (400, request("PUT", f"{T}/partitions", b"9" * 5_000)),
    (400, request("PUT", f"{T}/partitions", b"\xff\xfe")),
    (404, request("GET", "/")),
    (404, request("GET", "/%00/%2F%2F/\x7f")),
    (404, request("PATCH", "/admin/v2/tenants/a/b/c")),
    (405, request("PATCH", f"{N}/retention", b"{}")),
    (405, request("PATCH", N)),
    (406, request("PUT", f"{T}/partitions", b"-1")),
    (406, request("PUT", f"{T}/partitions", b"true")),
    (406, request("PUT", f"{T}/partitions", b"1000000000000")),
    (411, request("POST", f"{N}/retention", b"", "Transfer-Encoding: chunked")),
    (412, request("GET", "/admin/v2/persistent/public/default/%0a%2f")),
    (413, request("POST", f"{N}/retention", bytes(2 << 20))),
    (400, request("POST", f"{N}/messageTTL", b"null")),
    (400, request("POST", f"{N}/messageTTL", b'"soon"')),
    (400, request("POST", f"{N}/messageTTL", b"[1]")),
    (400, request("POST", f"{N}/messageTTL", b"NaN")),
    (400, request("POST", f"{N}/messageTTL", b"Infinity")),
    (400, request("POST", f"{N}/messageTTL", b"1" * 400)),
    (400, request("POST", f"{N}/messageTTL?messageTTL=x")),
    (400, request("POST", f"{N}/publishRate", b"5")),
    (400, request("POST", f"{N}/publishRate", b'{"publishThrottlingRateInMsg": "x"}')),
    (400, request("POST", f"{N}/publishRate", b'{"publishThrottlingRateInMsg": {}}')),
    (400, request("PUT", f"{N}/schemaCompatibilityStrategy", b"[]")),
    (400, request("PUT", f"{N}/schemaCompatibilityStrategy", b"{}")),
    (400, request("POST", f"{N}/backlogQuota", b"[]")),
    (400, request("POST", f"{N}/backlogQuota", b'{"policy": "producer_exception", "limit": "x"}')),
    (400, request("POST", f"{N}/backlogQuota", b'{"policy": "producer_exception", "limitTime": [1]}')),
    (400, request("POST", f"{T}/subscription/s/resetcursor", b'{"ledgerId": "x"}')),
    (400, request("POST", f"{T}/subscription/s/resetcursor", b'{"ledgerId": null, "entryId": {}}')),
    (405, request("POST", f"{T}/subscription/s/skip/%C2%B2")),
    (400, request("POST", f"{S}/schema", b"7")),
    (400, request("POST", f"{S}/schema", b'{"type": "AVRO", "properties": [1]}')),
    (422, request("POST", f"{S}/schema", b'{"type": ["AVRO"]}')),
    (404, request("GET", f"{S}/schema/{'9' * 30}")),
    (404, request("GET", f"{T}/ledger/%C2%B2/entry/1")),
    (404, request("GET", "/admin/v3/transactions/transactionMetadata/9/9")),
]


@pytest.mark.parametrize(
    ("status", "data"),
    REFUSED,
    ids=lambda each: each[:60].decode("latin-1") if isinstance(each, bytes) else "",
)
async def test_a_request_that_is_refused(status: int, data: bytes) -> None:
    async with EmbeddedPulsar(admin=True, topics={"t": {"subscriptions": ["s"]}}) as pulsar:
        found, answer = await raw(pulsar, data)
        assert (found, type(answer.get("reason"))) == (status, str)
        assert await PulsarAdmin(pulsar.admin_url).topics() == ["persistent://public/default/t"]


SCHEMAS = [
    b"[]",
    b"{}",
    b"7",
    b'{"type": "record"}',
    b'{"type": "record", "fields": [{}]}',
    b'{"type": "record", "fields": 7}',
]
SCHEMAS += [
    b'{"type": "enum", "name": []}',
    b'{"type": "record", "name": {}, "fields": []}',
    b"[" * 900 + b"]" * 900,
]


async def test_schemas_that_are_none() -> None:
    """Each pair has an answer."""
    async with EmbeddedPulsar(admin=True, topics="t") as pulsar:
        for former, new in thinned(itertools.permutations(SCHEMAS, 2), 5):
            for schema in (former, new):
                body = json.dumps({"type": "AVRO", "schema": schema.decode()}).encode()
                status, _ = await raw(pulsar, request("POST", f"{S}/schema", body))
                assert status in (200, 409, 422)
            await raw(pulsar, request("DELETE", f"{S}/schema"))


BODIES = [
    None,
    True,
    -1,
    1 << 70,
    0.5,
    "x",
    [],
    [None],
    {},
    {"type": "AVRO"},
    {"ledgerId": -5, "entryId": 1 << 70},
]
BODIES += [{"partitions": {}}, {"policy": "producer_exception"}, {"retentionTimeInMinutes": "x"}]
PATHS = [
    "/",
    "/admin/v2/tenants/a",
    "/admin/v2/clusters",
    N,
    T,
    S,
    f"{T}/partitions",
    f"{T}/unload",
    f"{T}/terminate",
]
PATHS += [
    f"{T}/{each}"
    for each in ("compaction", "stats", "partitioned-stats", "internalStats", "lastMessageId", "retention")
]
PATHS += [
    f"{T}/subscription/{each}" for each in ("s", "s/skip_all", "s/skip/5", "s/resetcursor", "s/resetcursor/5")
]
PATHS += [f"{T}/subscription/{each}" for each in ("s/expireMessages/0", "s/position/1", "none", "s/x/y/z")]
PATHS += [
    f"{N}/{each}"
    for each in ("topics", "unload", "0x00_0xff/unload", "deduplication", "messageTTL", "publishRate")
]
PATHS += [
    f"{N}/{each}"
    for each in ("backlogQuota", "backlogQuotaMap", "schemaValidationEnforced", "permissions/a/b")
]
PATHS += [f"{S}/{each}" for each in ("schema", "schema/0", "schemas", "compatibility", "version", "x")]
PATHS += [
    "/lookup/v2/topic/persistent/public/default/t",
    "/lookup/v2/topic/x/y/z/t",
    "/admin/v3/transactions/coordinators",
]
PATHS += [
    f"{T}/ledger/0/entry/0",
    f"{T}/%C3%A9",
    "/admin/v2/persistent/public/default",
    "/admin/v2/non-persistent/a/b/c/stats",
]


async def test_every_path_with_any_body() -> None:
    """No request is without an answer, and none is an exception of the server."""
    async with EmbeddedPulsar(
        admin=True, topics={"t": {"subscriptions": ["s"], "messages": ["v"]}}
    ) as pulsar:
        for method, path in itertools.product(("GET", "PUT", "POST", "DELETE", "PATCH"), PATHS):
            for body in thinned(BODIES, 5) if method in ("PUT", "POST") else BODIES[:1]:
                data = b"" if body is None else json.dumps(body).encode()
                status, answer = await raw(pulsar, request(method, path, data))
                assert status < 500, (method, path, body, answer)


@pytest.mark.parametrize(
    "header",
    ["", "x", "Bearer", "Bearer \xff", "Bearer other", "Basic", "Basic !!!", "Basic YW5u", "Basic /////w=="],
)
async def test_a_request_without_a_credential(header: str) -> None:
    async with EmbeddedPulsar(admin=True, topics="t", tokens={"secret": "a"}, users={"ann": "b"}) as pulsar:
        wrong = request("GET", f"{T}/stats").replace(b"Host: x", f"Authorization: {header}".encode("latin-1"))
        assert (await raw(pulsar, wrong))[0] == 401
        right = request("GET", f"{T}/stats", b"", "Authorization: Bearer secret")
        assert (await raw(pulsar, right))[0] == 200


async def test_no_broker_runs() -> None:
    async with EmbeddedPulsar(admin=True, topics="t") as pulsar:
        await pulsar.stop_broker(1)
        path = "/lookup/v2/topic/persistent/public/default/t"
        assert await raw(pulsar, request("GET", path)) == (503, {"reason": "no broker is running"})
        assert (await raw(pulsar, request("GET", f"{T}/stats")))[0] == 200


async def test_connections_that_send_nothing_end_with_the_server() -> None:
    async with EmbeddedPulsar(admin=True) as pulsar:
        host, _, port = pulsar.admin_url.removeprefix("http://").rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
        for _, writer in opened[:50]:
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 50\r\n\r\nx")
        assert await PulsarAdmin(pulsar.admin_url).topics() == []
    for reader, writer in opened:
        try:
            async with asyncio.timeout(5):
                assert await reader.read() == b""
        except ConnectionError:
            pass
        writer.transport.abort()
