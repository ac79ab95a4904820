"""`health`: probes of a process over HTTP, also of servers that do not answer as they should, and the judgement of a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from asyncgroup import Producer
from asyncgroup.checks import ConfigError
from asyncgroup.cli.http_get import MAX_ANSWER, http_get, parse_url
from asyncgroup.errors import UsageError
from asyncgroup.telemetry import serve_probes
from tests.cli.admin_commands import Commands
from tests.cli.test_groups import member
from tests.stories.virtual import VirtualEnvironment
from tests.telemetry.test_probe_server import Client

LIVE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"passed": true, "reasons": []}'
NOT_READY = (
    b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"passed": false, "reasons": ["g: not joined\\u001b[2J"]}'
)


@asynccontextmanager
async def serving(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A server that answers each request with these bytes and closes the connection; yields its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
        writer.close()
        with contextlib.suppress(ConnectionError):  # the client reads no more than it needs
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def health(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands("127.0.0.1:1", capsys)


@pytest.mark.real
async def test_a_process_that_lives_and_is_ready(health: Commands) -> None:
    asked = list[bytes]()

    def answer(request: bytes) -> bytes:
        asked.append(request)
        return LIVE

    async with serving(answer) as url:
        printed = await health.ok("health", f"{url}/probes/")
    assert printed.table() == [
        ["PROBE", "HEALTHY", "HTTP-STATUS", "REASONS"],
        ["live", "yes", "200", "-"],
        ["ready", "yes", "200", "-"],
    ]
    assert sorted(each.split(b" HTTP")[0] for each in asked) == [b"GET /probes/live", b"GET /probes/ready"]
    assert all(b"\r\nConnection: close\r\n" in each for each in asked)


@pytest.mark.real
async def test_a_process_that_is_not_ready_says_why(health: Commands) -> None:
    async with serving(lambda request: NOT_READY if b"/ready" in request else LIVE) as url:
        printed = await health("health", url, "--json")
    assert printed.code == 1
    assert printed.rows[1] == {
        "probe": "ready",
        "healthy": False,
        "http_status": 503,
        "reasons": ["g: not joined\\x1b[2J"],
    }


@pytest.mark.real
async def test_the_probes_that_this_package_serves(health: Commands) -> None:
    client = Client()
    async with serve_probes(0, client) as server:
        url = f"http://127.0.0.1:{server.port}"
        rows = await health.json("health", url)
        assert [(row["probe"], row["healthy"], row["http_status"]) for row in rows] == [
            ("live", True, 200),
            ("ready", True, 200),
        ]
        client.not_ready = "not joined yet"
        printed = await health("health", url, "--json")
    assert printed.code == 1
    live, ready = printed.rows
    assert (live["healthy"], ready["healthy"], ready["http_status"]) == (True, False, 503)
    assert ready["reasons"] == ["g: not joined yet"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the answer is not HTTP"),
        (b"\x00\xff" * 5000, "the answer is not HTTP"),
        (b"HTTP/1.1 twohundred OK\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 500 Oops\r\n\r\nTraceback\nmore", "Traceback"),
        (b'HTTP/1.1 500 Oops\r\n\r\n{"reasons": "none"}', '{"reasons": "none"}'),
        (b"HTTP/1.1 404 Not Found\r\n\r\n" + b"x" * 10 * MAX_ANSWER, "x" * 200 + "…"),
    ],
)
async def test_other_answers(health: Commands, answer: bytes, reason: str) -> None:
    async with serving(lambda _: answer) as url:
        printed = await health("health", url, "--json")
    assert printed.code == 1
    assert printed.rows[0]["reasons"] == [reason]


@pytest.mark.real
async def test_a_server_that_is_silent_or_absent(health: Commands) -> None:
    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client gives up
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UsageError, match=r"no answer within 0\.05 s"):
            await http_get(parse_url(f"http://127.0.0.1:{port}"), "/live", 0.05)
    printed = await health("health", f"http://127.0.0.1:{port}", "--json")
    assert (printed.code, printed.rows[0]["http_status"]) == (1, None)
    assert "127.0.0.1" in printed.rows[0]["reasons"][0]


@pytest.mark.parametrize(
    "text", ["ftp://host", "http://", "http://host:99999", "http://host:x", "http://a b", "://"]
)
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:8080"):
        parse_url(text)


async def test_a_group(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    async with Producer(env.bootstrap_servers) as producer:
        for _ in range(10):
            await producer.send("orders", b"x", partition=0)
    await asyncgroup.ok("offsets", "alter", "g", "orders:0=4")
    printed = await asyncgroup("health", "g", "--json")
    assert (printed.code, printed.rows[0]["reasons"]) == (1, ["no members, state Empty"])
    async with member(env, "g", "classic"):
        (row,) = await asyncgroup.json("health", "g", "--max-lag", "6")
        assert (row["healthy"], row["state"], row["members"], row["lag"]) == (True, "Stable", 1, 6)
        printed = await asyncgroup("health", "g", "--max-lag", "5", "--json")
        assert (printed.code, printed.rows[0]["healthy"]) == (1, False)
        assert printed.rows[0]["reasons"] == ["a partition has a lag of 6, more than 5"]
        env.cluster.faults.on("ListOffsets", times=None).error("TOPIC_AUTHORIZATION_FAILED")
        printed = await asyncgroup("health", "g", "--json")
        assert printed.code == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in printed.rows[0]["reasons"][0]
    printed = await asyncgroup("health", "nope")
    assert (printed.code, printed.out) == (1, "")
    assert "GROUP_ID_NOT_FOUND" in printed.err
