"""`consume` and `work` with --metrics-port: probes and metrics over HTTP while the command runs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli import main
from asyncgroup.cli.app import _parser
from asyncgroup.lifecycle import cancel_and_wait
from tests.cli.programs import broker, free_ports, run
from tests.cli.pulsar_broker import StoringBroker

pytestmark = pytest.mark.real

pytest.importorskip("prometheus_client")


async def get(port: int, path: str) -> tuple[int, str]:
    """Return status and body; status 0 while nothing listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return 0, ""
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


async def page_with(port: int, line: str) -> str:
    """Return the page of the metrics once it has a line."""
    async with asyncio.timeout(20):
        while True:
            _, page = await get(port, "/metrics")
            if f"\n{line}\n" in page:
                return page
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[tuple[EmbeddedCluster, int]]:
    """Run a command on the topic `t`, which has five records in its one partition; yield the cluster and the port."""
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("t", 1)
        for number in range(5):
            cluster.produce("t", b"%d" % number, partition=0)
        port = free_ports(1)
        words = [*arguments, "-b", cluster.bootstrap_servers, "--metrics-port", str(port)]
        options = _parser().parse_args(words)
        command = asyncio.create_task(options.run(options))
        try:
            yield cluster, port
        finally:
            await cancel_and_wait(command)
        assert (await get(port, "/live"))[0] == 0


async def test_a_group_that_prints(capsys: pytest.CaptureFixture[str]) -> None:
    async with running("consume", "-t", "t", "--group", "g", "--from", "earliest") as (cluster, port):
        page = await page_with(port, 'asyncgroup_records_consumed_total{group="g",topic="t"} 5.0')
        assert 'asyncgroup_lag{group="g",partition="0",topic="t"} 0.0\n' in page
        assert 'asyncgroup_healthy{group="g"} 1.0\n' in page
        assert (await get(port, "/live"))[0] == (await get(port, "/ready"))[0] == 200
        cluster.produce("t", b"5", partition=0)
        await page_with(port, 'asyncgroup_records_consumed_total{group="g",topic="t"} 6.0')
        printed = ""  # a record counts before it is printed
        async with asyncio.timeout(20):
            while not printed.endswith("5\n"):
                printed += capsys.readouterr().out
                await asyncio.sleep(0.02)
    assert (printed + capsys.readouterr().out).split() == ["0", "1", "2", "3", "4", "5"]


async def test_partitions_without_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    async with running("consume", "-t", "t", "--from", "earliest") as (_, port):
        async with asyncio.timeout(20):
            while "asyncgroup_fetched_bytes_total" not in (page := (await get(port, "/metrics"))[1]):
                await asyncio.sleep(0.02)
        assert "asyncgroup_records_consumed_total{" not in page
        assert (await get(port, "/ready"))[0] == 200
    assert capsys.readouterr().err == ""


async def test_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metered_handlers.py").write_text("async def handle(delivery):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    arguments = (
        "work",
        "metered_handlers:handle",
        "--group",
        "q",
        "--topics",
        "t",
        "--from",
        "earliest",
    )
    async with running(*arguments) as (_, port):
        page = await page_with(port, 'asyncgroup_deliveries_total{group="q",outcome="acknowledged"} 5.0')
        assert 'asyncgroup_window_bytes{group="q",partition="0",topic="t"}' in page
        assert (await get(port, "/live"))[0] == (await get(port, "/ready"))[0] == 200


@pytest.mark.parametrize("group", [[], ["--group", "g"]])
async def test_a_topic_of_pulsar(capsys: pytest.CaptureFixture[str], group: list[str]) -> None:
    """A consumer in a subscription is not ready while it is not connected."""
    port = free_ports(2)
    broker_port = port + 1
    async with StoringBroker(broker_port) as broker:
        broker.existing.add("t")
        broker.add("t", b"0")
        words = ["consume", "-t", "t", "-b", broker.url, "--from", "earliest", *group]
        options = _parser().parse_args([*words, "--metrics-port", str(port)])
        command = asyncio.create_task(options.run(options))
        page = await page_with(port, "asyncgroup_connections 1.0")
        assert "asyncgroup_requests_total{api=" in page
        assert (await get(port, "/live"))[0] == (await get(port, "/ready"))[0] == 200
        printed = ""
        async with asyncio.timeout(20):
            while printed != "0\n":
                await asyncio.sleep(0.02)
                printed += capsys.readouterr().out
        broker.silent = True
        broker.cut()
        if group:
            async with asyncio.timeout(20):
                while (answer := await get(port, "/ready"))[0] == 200:
                    await asyncio.sleep(0.02)
            assert (answer[0], "g: no partition is connected to its broker" in answer[1]) == (503, True)
        assert (await get(port, "/live"))[0] == 200
        await cancel_and_wait(command)
    assert capsys.readouterr().out == ""


async def test_a_port_that_is_in_use_ends_the_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        async with EmbeddedCluster(nodes=1, seed=1) as cluster:
            cluster.create_topic("t", 1)
            words = [
                "consume",
                "-t",
                "t",
                "--group",
                "g",
                "-b",
                cluster.bootstrap_servers,
                "--metrics-port",
                port,
            ]
            options = _parser().parse_args(words)
            with pytest.raises(OSError, match=port):
                await options.run(options)


def test_a_host_without_a_port_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["consume", "-t", "t", "-b", "localhost:9", "--metrics-host", "0.0.0.0"])
    assert "--metrics-host is for --metrics-port" in capsys.readouterr().err


@pytest.mark.full
def test_log_lines_as_json() -> None:
    with broker("--topic", "orders:1") as servers:
        run("produce", "-b", servers, "-t", "orders", stdin="one\n")
        arguments = (
            "--group",
            "g",
            "--from",
            "earliest",
            "--max-messages",
            "1",
            "--log-format",
            "json",
            "-v",
        )
        result = run("consume", "-b", servers, "-t", "orders", *arguments)
    assert (result.returncode, result.stdout) == (0, "one\n")
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert [line["event"] for line in lines if "event" in line] == ["joined", "assigned", "revoked"]
    assert {line["level"] for line in lines} == {"INFO"}
