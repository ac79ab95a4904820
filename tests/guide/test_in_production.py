"""The programs of the page "In production", on an embedded broker; FastAPI, if it is installed, otherwise a stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from asyncgroup import NoBrokersError
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing import KafkaServer
from tests.cli.programs import free_ports
from tests.guide.pages import snippet
from tests.guide.test_execution import RECORDS, Enough, Printed, committed, define, server

__all__ = ["server"]

Get = Callable[[str], Awaitable[tuple[int, str]]]

PAGE = "in-production"


def test_a_log_line_is_one_json_object() -> None:
    names: dict[str, Any] = {}
    exec(snippet(PAGE, "class JsonFormatter"), names)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord(
            "asyncgroup.group", logging.ERROR, __file__, 1, "%s failed", ("a\nb",), sys.exc_info()
        )
    record.created = 1_700_000_000.25
    line = names["JsonFormatter"]().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert "ValueError: two\nlines" in fields.pop("exception")
    assert fields == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "ERROR",
        "logger": "asyncgroup.group",
        "message": "a\nb failed",
    }


# --- the worker -------------------------------------------------------------------------------------------------------


def worker(server: KafkaServer, printed: Printed, port: int) -> Callable[[], Any]:
    """Return `main` of the worker: the service and the worker in one module, as the page says."""
    names = define(snippet(PAGE, "class Service"), server, print=printed)
    code = snippet(PAGE, "asyncio.start_server").replace("port=8080", f"host='127.0.0.1', port={port}")
    main: Callable[[], Any] = define(code, server, **names)["main"]
    return main


async def get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


async def until_ready(get: Get, running: asyncio.Task[Any] | None = None) -> dict[str, Any]:
    """Return the JSON of /readyz once it is ready and all records are handled."""
    while running is None or not running.done():
        with contextlib.suppress(ConnectionError):
            status, text = await get("/readyz")
            if status == 200 and sum(claim["next_mark"] for claim in json.loads(text)["claims"]) == RECORDS:
                return dict(json.loads(text))
        await asyncio.sleep(0.02)
    raise AssertionError(running)


def test_a_worker_answers_probes_and_ends_on_sigterm(server: KafkaServer) -> None:
    (port, printed) = free_ports(1), Printed(last=100)

    async def story() -> None:
        running = asyncio.create_task(worker(server, printed, port)())
        await until_ready(lambda path: get(port, path), running)
        assert await get(port, "/livez") == (200, "stable")
        assert await get(port, "/other") == (404, "")
        status, text = await get(port, "/metrics")
        assert status == 200
        assert {'consumer_records_total{topic="greetings"} 3', "consumer_healthy 1"} < set(text.splitlines())
        _, silent = await asyncio.open_connection("127.0.0.1", port)  # must not delay the end
        os.kill(os.getpid(), signal.SIGTERM)
        await running
        silent.close()

    asyncio.run(story())
    assert printed.values == [b"0", b"1", b"2"]
    assert committed(server, "printers") == RECORDS


def test_a_worker_ends_with_the_error_of_its_handler(server: KafkaServer) -> None:
    with pytest.raises(Enough):
        asyncio.run(worker(server, Printed(last=2), free_ports(1))())
    assert committed(server, "printers") == 1


# --- the web application ----------------------------------------------------------------------------------------------


class Application:
    """What the page uses of FastAPI: routes, and an ASGI application with a lifespan whose state requests have."""

    def __init__(self, lifespan: Callable[[Any], Any]) -> None:
        self._lifespan = lifespan
        self._routes: dict[str, Callable[[Any], Any]] = {}

    def get(self, path: str) -> Callable[[Any], Any]:
        def add(route: Any) -> Any:
            self._routes[path] = route
            return route

        return add

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with self._lifespan(self) as state:
                scope["state"].update(state)
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = SimpleNamespace(
            url=SimpleNamespace(path=scope["path"]), state=SimpleNamespace(**scope["state"])
        )
        response = await self._routes[scope["path"]](request)
        await send({"type": "http.response.start", "status": response.status})
        await send({"type": "http.response.body", "body": response.text.encode()})


def stand_ins() -> dict[str, ModuleType]:
    """Return modules with the names that the page imports."""
    fastapi, responses, uvicorn = map(ModuleType, ("fastapi", "fastapi.responses", "uvicorn"))
    vars(fastapi).update(FastAPI=Application, Request=SimpleNamespace)
    vars(responses)["PlainTextResponse"] = lambda text, status: SimpleNamespace(text=text, status=status)
    return {module.__name__: module for module in (fastapi, responses, uvicorn)}


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[Get]:
    """Run an ASGI application's lifespan around the block, as uvicorn does; yields a function that requests a path."""
    requests: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answers: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, requests.get, answers.put))

    async def step(name: str) -> None:
        requests.put_nowait({"type": f"lifespan.{name}"})
        answer = asyncio.create_task(answers.get())
        await asyncio.wait([answer, running], return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        if running.done():
            await running
        if answer.done():
            assert answer.result()["type"] == f"lifespan.{name}.complete", answer.result()

    async def get(path: str) -> tuple[int, str]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        http = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        http |= {
            "headers": [],
            "server": ("probe", 80),
            "scheme": "http",
            "http_version": "1.1",
            "root_path": "",
        }
        await app({**scope, **http, "state": dict(scope["state"])}, receive, send)  # type: ignore[dict-item]
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()

    try:
        await step("startup")
        yield get
        await step("shutdown")
        await running
    finally:
        running.cancel()


def application(monkeypatch: pytest.MonkeyPatch, servers: str, printed: Printed) -> Any:
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        for name, module in stand_ins().items():
            monkeypatch.setitem(sys.modules, name, module)
    names: dict[str, Any] = {"__name__": "service", "print": printed}
    for text in ("class JsonFormatter", "class Service", "FastAPI(lifespan=lifespan)"):
        code = snippet(PAGE, text).replace("127.0.0.1:9092", servers)
        exec(
            compile(code, "service", "exec", dont_inherit=True), names
        )  # without the annotations of this module
    return names["app"]


@contextlib.asynccontextmanager
async def greetings() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 2)
        for number in range(RECORDS):
            broker.produce("greetings", b"%d" % number, partition=number % 2)
        yield broker


@pytest.mark.asyncio
@pytest.mark.virtual
async def test_an_application_consumes_during_its_lifespan(monkeypatch: pytest.MonkeyPatch) -> None:
    async with greetings() as broker:
        app = application(monkeypatch, broker.bootstrap_servers, printed := Printed(last=100))
        async with served(app) as get:
            assert (await get("/readyz"))[0] == 503
            health = await until_ready(get)
            assert health["problems"] == []
            assert (await get("/livez"))[0] == 200
            assert 'consumer_lag{topic="greetings",partition="1"} 0' in (await get("/metrics"))[1]
        assert sorted(str(value) for value in printed.values) == ["b'0'", "b'1'", "b'2'"]
        assert sum(each.offset for each in broker.group("printers").offsets.values()) == RECORDS
        assert broker.group("printers").members == {}


@pytest.mark.asyncio
@pytest.mark.virtual
async def test_without_a_broker_an_application_is_alive_but_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with greetings() as broker:
        app = application(monkeypatch, broker.bootstrap_servers, Printed(last=100))
        async with served(app) as get:
            await until_ready(get)
            await broker.stop_node(1)
            await asyncio.sleep(60.0)
            assert (await get("/livez"))[0] == 200
            status, text = await get("/readyz")
            assert (status, json.loads(text)["is_healthy"]) == (503, False)
            assert "consumer_healthy 0" in (await get("/metrics"))[1].splitlines()
            await broker.start_node(1)
            await until_ready(get)


@pytest.mark.asyncio
@pytest.mark.virtual
async def test_an_application_whose_handler_raised_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async with greetings() as broker:
        app = application(monkeypatch, broker.bootstrap_servers, Printed(last=1))
        with pytest.raises(Enough):
            async with served(app) as get:
                await asyncio.sleep(10.0)
                assert (await get("/livez"))[0] == 503
                assert 'consumer_session_ends_total{cause="HandlerFailed"} 1' in (await get("/metrics"))[1]


@pytest.mark.asyncio
@pytest.mark.virtual
async def test_an_application_does_not_start_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoBrokersError):
        async with served(application(monkeypatch, "127.0.0.1:9999", Printed())):
            pass
