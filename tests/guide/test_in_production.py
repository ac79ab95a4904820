"""The programs of the page "In production", on an embedded broker; FastAPI, if it is installed, otherwise a stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from asyncgroup import NoBrokersError
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing import KafkaServer
from tests.cli.programs import LIMIT, free_ports, started
from tests.cli.test_metrics_port import get
from tests.guide.manifests import entry_point
from tests.guide.pages import snippet
from tests.guide.test_execution import RECORDS, Enough, Printed, committed, define, server

__all__ = ["server"]

pytest.importorskip("prometheus_client")

Get = Callable[[str], Awaitable[tuple[int, str]]]

PAGE = "in-production"

SERVERS = "ASYNCGROUP_BOOTSTRAP_SERVERS"
"""The variable of the environment that the programs and the manifests of the page have."""


async def until_ready(get: Get, printed: list[Any], running: asyncio.Task[Any] | None = None) -> None:
    """Wait until /ready answers 200 and all records are handled."""
    while running is None or not running.done():
        with contextlib.suppress(ConnectionError):
            status, _ = await get("/ready")
            if status == 200 and len(printed) >= RECORDS:
                return
        await asyncio.sleep(0.02)
    raise AssertionError(running)


# --- the worker -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVERS, raising=False)


def worker(port: int) -> str:
    """Return the worker's program with this port, on the loopback interface."""
    code = snippet(PAGE, "# worker.py")
    return code.replace("serve_probes(8080", f"serve_probes({port}").replace(
        'host="0.0.0.0"', "host='127.0.0.1'"
    )


def test_a_worker_answers_probes_and_ends_on_sigterm(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port, printed) = free_ports(1), Printed(last=100)
    monkeypatch.setenv(SERVERS, server.bootstrap_servers)
    main = define(worker(port), server, print=printed)["main"]
    statuses: list[int] = []
    pages: list[str] = []

    async def probe() -> None:
        await until_ready(lambda path: get(port, path), printed)
        for path in ("/live", "/other", "/metrics"):
            status, text = await get(port, path)
            statuses.append(status)
            pages.append(text)
        _, silent = await asyncio.open_connection("127.0.0.1", port)  # must not delay the end
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.to_thread(ended.wait, LIMIT)
        silent.close()

    ended = threading.Event()
    prober = threading.Thread(target=asyncio.run, args=(asyncio.wait_for(probe(), LIMIT),))
    prober.start()
    try:
        code = main()
    finally:
        ended.set()
        prober.join()
    assert code == 143
    assert statuses == [200, 404, 200]
    assert {
        'asyncgroup_records_consumed_total{group="printers",topic="greetings"} 3.0',
        'asyncgroup_healthy{group="printers"} 1.0',
    } < set(pages[-1].splitlines())
    assert printed.values == [b"0", b"1", b"2"]
    assert committed(server, "printers") == RECORDS
    assert server.group("printers").members == {}


def test_a_worker_ends_with_the_error_of_its_handler(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVERS, server.bootstrap_servers)
    with pytest.raises(Enough):
        define(worker(free_ports(1)), server, print=Printed(last=2))["main"]()
    assert committed(server, "printers") == 1


AS_PID_1 = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Runs a command as PID 1 of a PID namespace, as in a container."""


def can_be_pid_1() -> bool:
    """Return whether this machine has namespaces for users that are not root."""
    try:
        return subprocess.run([*AS_PID_1, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def child_of(process: int) -> int:
    """Return the only child of a process."""
    (child,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(child)


def end_of_process(
    code: str, servers: str, directory: Path, stop_at: str | None, *, as_pid_1: bool = False
) -> tuple[int, str, str]:
    """Run a program as a file, on these servers; send SIGTERM once it printed this line; return exit code, standard output and error."""
    (directory / "worker.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
    environment[SERVERS] = servers
    with subprocess.Popen(
        [*(AS_PID_1 if as_pid_1 else ()), sys.executable, "worker.py"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            seen = []
            while stop_at is not None and (line := process.stdout.readline()):
                seen.append(line)
                if line == stop_at:
                    os.kill(child_of(process.pid) if as_pid_1 else process.pid, signal.SIGTERM)
                    break
            out, err = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    return process.returncode, "".join(seen) + out, err


@pytest.mark.full
@pytest.mark.parametrize("as_pid_1", [False, True], ids=["any process", "PID 1"])
def test_the_process_of_a_worker_exits_with_143_after_sigterm(
    server: KafkaServer, tmp_path: Path, as_pid_1: bool
) -> None:
    if as_pid_1 and not can_be_pid_1():
        pytest.skip("unshare cannot create a PID namespace here")
    program = worker(free_ports(1))
    if as_pid_1:
        first = "    metrics = ClientMetrics()\n"
        assert first in program
        program = program.replace(first, f"    assert os.getpid() == 1\n{first}")
    code, out, err = end_of_process(
        program, server.bootstrap_servers, tmp_path, stop_at="0 2 b'2'\n", as_pid_1=as_pid_1
    )
    assert (code, out) == (143, "0 0 b'0'\n0 1 b'1'\n0 2 b'2'\n"), err
    events = [json.loads(line).get("event") for line in err.splitlines()]
    assert {"joined", "assigned", "revoked"} <= set(events)
    assert committed(server, "printers") == RECORDS
    assert server.group("printers").members == {}


@pytest.mark.full
def test_the_process_of_a_worker_exits_with_1_after_an_error_of_its_handler(
    server: KafkaServer, tmp_path: Path
) -> None:
    program = worker(free_ports(1)).replace(
        "print(claim.partition, record.offset,", "print(1 / (1 - record.offset),"
    )
    code, out, err = end_of_process(program, server.bootstrap_servers, tmp_path, stop_at=None)
    assert (code, out) == (1, "1.0 b'0'\n")
    assert "ZeroDivisionError" in err
    assert committed(server, "printers") == 1
    assert server.group("printers").members == {}


@pytest.mark.full
def test_the_process_of_a_worker_exits_with_1_without_a_broker(tmp_path: Path) -> None:
    unused = f"127.0.0.1:{free_ports(1)}"
    code, out, err = end_of_process(worker(free_ports(1)), unused, tmp_path, stop_at=None)
    assert (code, out) == (1, "")
    assert "NoBrokersError" in err


# --- the container of a queue -----------------------------------------------------------------------------------------


@pytest.fixture
def orders() -> Iterator[KafkaServer]:
    """A broker with records in the one partition of `orders`."""
    with KafkaServer(topics={"orders": 1}) as kafka:
        kafka.produce("orders", *(b"%d" % number for number in range(RECORDS)), partition=0)
        yield kafka


@pytest.mark.parametrize(
    "instance", [None, pytest.param("billing-0", marks=pytest.mark.full)], ids=["deployment", "stateful-set"]
)
def test_the_container_of_a_queue(
    orders: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: str | None
) -> None:
    """Its entry point as a process: records, probes, SIGTERM, exit code, commit; a static member stays in its group."""
    (tmp_path / "billing.py").write_text(snippet(PAGE, "# billing.py"))
    monkeypatch.setenv("ASYNCGROUP_BOOTSTRAP_SERVERS", orders.bootstrap_servers)
    if instance is not None:
        monkeypatch.setenv("ASYNCGROUP_GROUP_INSTANCE_ID", instance)
        monkeypatch.setenv("ASYNCGROUP_SESSION_TIMEOUT_MS", "60000")
    port = free_ports(1)
    words = [{"8080": str(port), "0.0.0.0": "127.0.0.1"}.get(word, word) for word in entry_point()]
    assert words[0] == "asyncgroup"
    with started(*words[1:], path=[tmp_path]) as program:
        assert sorted(program.lines(RECORDS)) == ["billed 0\n", "billed 1\n", "billed 2\n"]
        statuses = [asyncio.run(get(port, path))[0] for path in ("/live", "/ready", "/metrics")]
        code, out, err = program.end(signal.SIGTERM)
    assert statuses == [200, 200, 200]
    assert (code, out) == (143, "")
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert {"joined", "assigned", "revoked"} <= {line.get("event") for line in lines}
    assert committed(orders, "billing") == RECORDS
    stayed = [member.group_instance_id for member in orders.group("billing").members.values()]
    assert stayed == ([] if instance is None else [instance])


# --- the web application ----------------------------------------------------------------------------------------------


class Application:
    """What the page uses of FastAPI: a route, a mounted application, and a lifespan whose state requests have."""

    def __init__(self, lifespan: Callable[[Any], Any]) -> None:
        self._lifespan = lifespan
        self._mounted: dict[str, Any] = {}
        self._routes: dict[str, Callable[..., Any]] = {}

    def mount(self, path: str, app: Any) -> None:
        self._mounted[path] = app

    def post(self, path: str) -> Callable[[Any], Any]:
        def add(route: Any) -> Any:
            self._routes[path.partition("{")[0]] = route
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
        for path, app in self._mounted.items():
            if scope["path"].startswith(path):
                await app({**scope, "root_path": path}, receive, send)
                return
        head, _, number = scope["path"].rpartition("/")
        request = SimpleNamespace(state=SimpleNamespace(**scope["state"]))
        response = await self._routes[f"{head}/"](int(number), request)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": json.dumps(response).encode()})


def stand_ins() -> dict[str, ModuleType]:
    """Return modules with the names that the page imports."""
    fastapi, uvicorn = map(ModuleType, ("fastapi", "uvicorn"))
    vars(fastapi).update(FastAPI=Application, Request=SimpleNamespace)
    return {module.__name__: module for module in (fastapi, uvicorn)}


class Served:
    """An application whose lifespan runs: its requests."""

    def __init__(self, app: Any, scope: dict[str, Any]) -> None:
        self._app = app
        self._scope = scope

    async def request(self, method: str, path: str) -> tuple[int, str]:
        """Return status and body of a request."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        http = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": []}
        http |= {"server": ("probe", 80), "scheme": "http", "http_version": "1.1", "root_path": ""}
        scope = {**self._scope, **http, "query_string": b"", "state": dict(self._scope["state"])}
        await self._app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()

    async def get(self, path: str) -> tuple[int, str]:
        """Request a path of the probes."""
        return await self.request("GET", f"/probes{path}")


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[Served]:
    """Run an ASGI application's lifespan around the block, as uvicorn does."""
    requests: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answers: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    scope: dict[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
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

    try:
        await step("startup")
        yield Served(app, scope)
        await step("shutdown")
        await running
    finally:
        running.cancel()


def application(monkeypatch: pytest.MonkeyPatch, servers: str, printed: Printed) -> Any:
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        for name, module in stand_ins().items():
            monkeypatch.setitem(sys.modules, name, module)
    names: dict[str, Any] = {"__name__": "service", "print": printed}
    monkeypatch.setenv(SERVERS, servers)
    code = snippet(PAGE, "FastAPI(lifespan=lifespan)")
    exec(compile(code, "service", "exec", dont_inherit=True), names)  # without the annotations of this module
    return names["app"]


@contextlib.asynccontextmanager
async def greetings() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 2)
        broker.create_topic("orders", 1)
        for number in range(RECORDS):
            broker.produce("greetings", b"%d" % number, partition=number % 2)
        yield broker


def commits(broker: EmbeddedCluster, group: str) -> int:
    return sum(each.offset for each in broker.group(group).offsets.values())


async def test_an_application_consumes_during_its_lifespan(monkeypatch: pytest.MonkeyPatch) -> None:
    async with greetings() as broker:
        app = application(monkeypatch, broker.bootstrap_servers, printed := Printed(last=100))
        async with served(app) as service:
            assert (await service.get("/ready"))[0] == 503
            await until_ready(service.get, printed)
            assert json.loads((await service.get("/ready"))[1]) == {"passed": True, "reasons": []}
            assert (await service.get("/live"))[0] == 200
            for offset in range(2):
                status, text = await service.request("POST", f"/orders/{40 + offset}")
                assert (status, json.loads(text)) == (200, {"partition": 0, "offset": offset})
            while len(printed) < RECORDS + 2:
                await asyncio.sleep(0.02)
            page = (await service.get("/metrics"))[1].splitlines()
        assert {
            'asyncgroup_lag_max{group="printers"} 0.0',
            'asyncgroup_deliveries_started_total{group="billing"} 2.0',
            'asyncgroup_records_sent_total{topic="orders"} 2.0',
        } < set(page)
        values = [str(value) for value in printed.values]
        assert sorted(values) == ["b'0'", "b'1'", "b'2'", "b'40'", "b'41'"]
        assert (commits(broker, "printers"), commits(broker, "billing")) == (RECORDS, 2)
        assert broker.group("printers").members == broker.group("billing").members == {}


async def test_without_a_broker_an_application_is_alive_but_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with greetings() as broker:
        app = application(monkeypatch, broker.bootstrap_servers, printed := Printed(last=100))
        async with served(app) as service:
            await until_ready(service.get, printed)
            await broker.stop_node(1)
            await asyncio.sleep(60.0)
            assert (await service.get("/live"))[0] == 200
            status, text = await service.get("/ready")
            assert (status, json.loads(text)["passed"]) == (503, False)
            assert {reason.partition(":")[0] for reason in json.loads(text)["reasons"]} == {
                "printers",
                "billing",
            }
            assert 'asyncgroup_healthy{group="printers"} 0.0' in (await service.get("/metrics"))[1]
            await broker.start_node(1)
            await until_ready(service.get, printed)


async def test_an_application_whose_handler_raised_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async with greetings() as broker:
        app = application(monkeypatch, broker.bootstrap_servers, Printed(last=1))
        with pytest.raises(Enough):
            async with served(app) as service:
                await asyncio.sleep(10.0)
                status, text = await service.get("/live")
                assert status == 503
                assert json.loads(text)["reasons"][0].startswith("printers: ")
                page = (await service.get("/metrics"))[1]
                assert 'asyncgroup_rebalances_total{cause="HandlerFailed",group="printers"} 1.0' in page
        assert broker.group("printers").members == broker.group("billing").members == {}


async def test_an_application_does_not_start_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoBrokersError):
        async with served(application(monkeypatch, "127.0.0.1:9999", Printed())):
            pass
