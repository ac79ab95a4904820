"""serve_probes over real sockets: what it answers, and clients that are slow or send anything else."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Producer, Session
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.group.health.health import Health
from asyncgroup.telemetry import ClientMetrics, ProbeServer, probe_server as module, serve_probes

pytestmark = pytest.mark.real


class Client:
    """What probes ask of a group."""

    def __init__(self, fatal: str | None = None, not_ready: str | None = None) -> None:
        self.fatal, self.not_ready = fatal, not_ready

    def health(self) -> Health:
        return Health(
            "g", "stable", 1.0, "m", 1, "classic", None, None, (), None, (), (), self.fatal, self.not_ready
        )


@asynccontextmanager
async def serving(*clients: Any, metrics: ClientMetrics | None = None) -> AsyncIterator[ProbeServer]:
    async with serve_probes(0, *clients, metrics=metrics) as server:
        yield server


@asynccontextmanager
async def connecting(server: ProbeServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def raw(server: ProbeServer, data: bytes) -> bytes:
    """Send bytes and return everything that comes back."""
    async with connecting(server) as (reader, writer):
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 5)


async def get(
    server: ProbeServer, path: str, method: str = "GET", headers: str = ""
) -> tuple[int, bytes, bytes]:
    """Return status, head and body of a response."""
    response = await raw(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    return int(head.split()[1]), head, body


async def test_probes_answer_200_or_503_with_the_reasons() -> None:
    client = Client()
    async with serving(client) as server:
        for path in ("/live", "/ready", "/live?verbose=1"):
            status, head, body = await get(server, path)
            assert (status, json.loads(body)) == (200, {"passed": True, "reasons": []})
            assert b"Content-Type: application/json\r\n" in head
            assert f"Content-Length: {len(body)}\r\n".encode() in head
            assert head.endswith(b"Connection: close")
        client.not_ready = "the member has not joined its group"
        assert (await get(server, "/live"))[0] == 200
        status, _, body = await get(server, "/ready")
        assert (status, json.loads(body)["reasons"]) == (503, ["g: the member has not joined its group"])
        client.fatal = "stuck"
        assert (await get(server, "/live"))[0] == 503


async def test_a_header_of_many_blanks_does_not_block_the_event_loop() -> None:
    async with serving(Client()) as server:
        before = time.process_time()
        for end in (b"\n", b"x\r\n", b"\r\n", b"\r"):
            data = b"GET /live HTTP/1.1\r\nAccept:a" + b" " * 6000 + end + b"\r\n\r\n"
            assert (await raw(server, data)).startswith(b"HTTP/1.1 200 ")
            data = data.replace(b"Accept:a", b"Accept:")
            assert (await raw(server, data)).startswith(b"HTTP/1.1 200 ")
        # a search that tries each division of the blanks takes minutes
        assert time.process_time() - before < 1.0


async def test_head_has_no_body_other_methods_and_paths_are_refused() -> None:
    async with serving(Client()) as server:
        status, head, body = await get(server, "/live", "HEAD")
        assert (status, body) == (200, b"")
        assert b"Content-Length: 32" in head
        status, head, _ = await get(server, "/live", "POST", "Content-Length: 3\r\n")
        assert status == 405
        assert b"Allow: GET, HEAD" in head
        for path in ("/", "/livez", "/live/", "/metrics", "/../live", "/%6cive", "http://x/live"):
            status, _, body = await get(server, path)
            assert (status, body) == (404, b"not found; there are /live, /ready\n")
        assert (await raw(server, b"GET /live HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")


async def test_metrics_in_the_format_that_is_asked_for() -> None:
    pytest.importorskip("prometheus_client")
    metrics = ClientMetrics()
    metrics.on_heartbeat("g", 0.2)
    async with serving(metrics=metrics) as server:
        status, head, body = await get(server, "/metrics")
        assert status == 200
        assert b"Content-Type: text/plain; version=" in head
        assert b'asyncgroup_heartbeat_seconds_count{group="g"} 1.0\n' in body
        _, head, body = await get(
            server, "/metrics", headers="accept: application/openmetrics-text; version=1.0.0\r\n"
        )
        assert b"Content-Type: application/openmetrics-text" in head
        assert body.endswith(b"# EOF\n")
        for version in ("abc", "2..x", "1.", "-"):  # prometheus_client compares some with numbers
            accept = f"accept: application/openmetrics-text; version={version}\r\n"
            assert (await get(server, "/metrics", headers=accept))[0] == 200
        assert (await get(server, "/live"))[0] == 200  # without clients nothing is wrong


async def test_an_error_in_a_health_is_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def health(self) -> Health:
            raise RuntimeError("secret")

    async with serving(Broken()) as server:
        status, _, body = await get(server, "/live")
    assert (status, body) == (500, b"failed; the log has the reason\n")
    assert "/live failed" in caplog.text


# --- bad clients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # a TLS handshake
        bytes(range(256)) + b"\r\n\r\n",
        b"GET /live\r\n\r\n",
        b"GET  /live HTTP/1.1\r\n\r\n",
        b"get /live HTTP/1.1\r\n\r\n",
        b"GET /live HTTP/2.0\r\n\r\n",
        b"\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_400(data: bytes) -> None:
    async with serving(Client()) as server:
        assert (await raw(server, data)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert (await get(server, "/live"))[0] == 200


@pytest.mark.parametrize("size", [9_000, 200_000])
async def test_a_head_that_is_too_large_is_431(size: int) -> None:
    async with serving(Client()) as server:
        response = await raw(server, b"GET /live HTTP/1.1\r\nX: " + b"a" * size + b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 431 ")
        assert (await get(server, "/live"))[0] == 200


async def test_a_client_that_sends_without_end_is_cut_off() -> None:
    async with serving(Client()) as server:
        async with connecting(server) as (_, writer), asyncio.timeout(10):
            with pytest.raises(OSError):  # a reset, or a broken pipe
                while True:
                    writer.write(b"a" * 100_000)
                    await writer.drain()
        assert not server._connections
        assert (await get(server, "/live"))[0] == 200


async def test_slow_clients_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0.3)
    async with serving(Client()) as server, connecting(server) as (reader, writer):
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def drip() -> None:  # a byte now and then does not make it longer, however many there are
            for byte in itertools.cycle(b"GET /live HTTP/1.1"):
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        with suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""
        assert loop.time() - began > 0.25
        assert not dripping.done()
        dripping.cancel()


async def test_many_clients_that_send_nothing_do_not_keep_probes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 5)
    async with serving(Client()) as server, AsyncExitStack() as stack:
        for _ in range(12):
            await stack.enter_async_context(connecting(server))
        assert (await get(server, "/live"))[0] == 200
        assert len(server._connections) <= 5


async def test_a_client_that_never_reads_its_response_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0.3)
    reasons = Client(not_ready="x" * 20_000_000)
    async with serving(reasons) as server:
        client = socket.create_connection((server.host, server.port))
        client.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(5):
            while not server._connections:
                await asyncio.sleep(0.01)
            while server._connections:
                await asyncio.sleep(0.01)
        client.close()
        reasons.not_ready = None
        assert (await get(server, "/ready"))[0] == 200


async def test_a_client_that_leaves_in_the_middle() -> None:
    async with serving(Client()) as server:
        for data in (b"", b"GET /live", b"GET /live HTTP/1.1\r\n\r\n"):
            async with connecting(server) as (_, writer):
                writer.write(data)
        assert (await get(server, "/live"))[0] == 200


# --- its life -----------------------------------------------------------------------------------------------------------


async def test_a_close_ends_connections_that_are_open() -> None:
    server = serve_probes(0, Client())
    assert repr(server) == "<ProbeServer http://127.0.0.1:0: not open>"
    await server.aclose()
    async with server, connecting(server) as (reader, _):
        while not server._connections:
            await asyncio.sleep(0)
        assert repr(server) == f"<ProbeServer http://127.0.0.1:{server.port}: 1 connections>"
        await server.aclose()
        assert await asyncio.wait_for(reader.read(), 5) == b""
    with pytest.raises(UsageError, match="was entered before"):
        await server.__aenter__()
    with pytest.raises(OSError):
        await asyncio.open_connection(server.host, server.port)


async def test_a_port_that_is_in_use() -> None:
    async with serving() as server:
        with pytest.raises(OSError, match=str(server.port)):
            await serve_probes(server.port).__aenter__()


@pytest.mark.parametrize(
    ("port", "clients", "metrics", "message"),
    [
        (70_000, (), None, r"port=70000 is not allowed: a number from 0 to 65535"),
        (-1, (), None, r"port=-1 is not allowed"),
        ("8080", (), None, r"port='8080' is not allowed: a number from 0 to 65535"),
        (0, ("g",), None, r"client of type str .*: a ConsumerGroup or a WorkQueue"),
        (0, (), {}, r"metrics of type dict .*: ClientMetrics, which the clients have as a hook"),
    ],
)
async def test_wrong_arguments(port: Any, clients: Any, metrics: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve_probes(port, *clients, metrics=metrics)


# --- a blocked event loop -----------------------------------------------------------------------------------------------


def probe(server: ProbeServer, path: str, seconds: float) -> int | None:
    """Return the status that a prober outside of the event loop gets; None without a response in time."""
    try:
        with urlopen(f"http://{server.host}:{server.port}{path}", timeout=seconds) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code
    except TimeoutError:
        return None


async def test_a_blocked_loop_fails_the_probe_and_is_live_again_when_it_runs() -> None:
    """The prober is a thread, as the kubelet is a process: it connects, and gets no response while a handler blocks."""
    blocks, goes_on, handled = threading.Event(), threading.Event(), asyncio.Event()

    async def handle(session: Session, claim: Claim) -> None:
        async for record in claim:
            blocks.set()
            assert goes_on.wait(30)  # without await: nothing of this event loop runs
            claim.mark(record)
            handled.set()

    def probe_while_blocked(server: ProbeServer) -> list[int | None]:
        assert blocks.wait(30)
        try:
            return [probe(server, path, 0.5) for path in ("/live", "/ready")]
        finally:
            goes_on.set()

    config = ConsumerConfig(auto_offset_reset="earliest")
    async with (
        EmbeddedCluster(initial_rebalance_delay=0.0) as broker,
        ConsumerGroup(broker.bootstrap_servers, "g", config) as group,
        serving(group) as server,
    ):
        broker.create_topic("orders")
        running = asyncio.create_task(group.run("orders", handle))
        assert await asyncio.to_thread(probe, server, "/live", 10.0) == 200
        prober = asyncio.create_task(asyncio.to_thread(probe_while_blocked, server))
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send("orders", b"a", partition=0)
        assert await prober == [None, None]
        await asyncio.wait_for(handled.wait(), 10)
        assert [await asyncio.to_thread(probe, server, path, 10.0) for path in ("/live", "/ready")] == [
            200,
            200,
        ]
        await group.aclose()
        await running


async def test_a_connection_accepted_during_the_close_is_aborted() -> None:
    server = serve_probes(0, Client())
    serve, closing = server._serve, list[asyncio.Task[None]]()

    async def serve_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closing.append(asyncio.create_task(server.aclose()))
        await asyncio.sleep(0)
        await serve(reader, writer)

    server._serve = serve_at_the_end  # type: ignore[method-assign]
    async with server, connecting(server) as (reader, _):
        assert await asyncio.wait_for(reader.read(), 5) == b""
        async with asyncio.timeout(5):
            await closing[0]
