"""`asyncgroup broker --pulsar`: an embedded Pulsar as a program, and the other commands on it."""

from __future__ import annotations

import json
import signal
import socket
import textwrap
import urllib.request
from pathlib import Path

import pytest

from tests.cli.programs import StartedCommand, free_ports, run, started

HANDLERS = """
    async def handle(delivery):
        pass
"""


def service_url(program: StartedCommand) -> str:
    """Return the URL that the broker prints."""
    line = program.line()
    assert line.startswith("service URL: pulsar://127.0.0.1:"), line
    return line.removeprefix("service URL: ").strip()


def test_messages_are_produced_and_consumed() -> None:
    with started("broker", "--pulsar", "--port", "0", "--brokers", "2", "--topic", "orders:3") as program:
        url = service_url(program)
        assert url.count(",") == 1
        produced = run("produce", "-b", url, "-t", "orders", "-K", ":", stdin="a:1\nb:2\nc:3\n")
        assert (produced.returncode, produced.stderr.partition(" in ")[0]) == (0, "3 records (9 B)")
        consumed = run("consume", "-b", url, "-t", "orders", "--from", "earliest", "--max-messages", "3")
        assert (consumed.returncode, sorted(consumed.stdout.split())) == (0, ["1", "2", "3"])
        assert program.end(signal.SIGINT) == (130, "", "")


@pytest.mark.full
def test_a_handler_works_on_a_subscription(tmp_path: Path) -> None:
    (tmp_path / "pulsar_work.py").write_text(textwrap.dedent(HANDLERS))
    with started("broker", "--pulsar", "--port", "0") as program:
        url = service_url(program)
        run("produce", "-b", url, "-t", "orders", stdin="1\n2\n3\n")
        work = ("work", "pulsar_work:handle", "-b", url, "--group", "g", "--topics", "orders")
        with started(*work, "--from", "earliest", "--json", path=[tmp_path]) as worker:
            while json.loads(worker.line())["acked"] < 3:
                pass
            assert worker.end(signal.SIGTERM)[0] == 143


@pytest.mark.full
def test_the_ready_line_as_json_and_the_admin_api() -> None:
    port = free_ports(3)
    arguments = ("--port", str(port), "--brokers", "2", "--admin-port", str(port + 2), "--json")
    topic = "persistent://public/default/bills"
    with started("broker", "--pulsar", *arguments, "--topic", f"{topic}:2") as program:
        found = json.loads(program.line())
        assert found["service_url"] == f"pulsar://127.0.0.1:{port},127.0.0.1:{port + 1}"
        assert found["brokers"][1] == {"id": 2, "host": "127.0.0.1", "port": port + 1}
        assert found["admin_url"] == f"http://127.0.0.1:{port + 2}"
        path = "/admin/v2/persistent/public/default"
        with urllib.request.urlopen(found["admin_url"] + path) as answer:
            assert json.load(answer) == [f"{topic}-partition-0", f"{topic}-partition-1"]
        assert program.end(signal.SIGTERM)[0] == 143


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data-dir", "d"], "--data-dir is not allowed with --pulsar, which keeps messages in memory"),
        (
            ["--set", "num.partitions=3"],
            "--set num.partitions: an embedded Pulsar has no such setting; did you mean default_partitions?",
        ),
        (["--topic", "a:1:x=y"], "--topic a:1:x=y is not allowed: NAME:PARTITIONS with --pulsar"),
        (["--topic", "a:1", "--topic", "a:2"], "--topic a:2: NotAllowedError: This topic already exists"),
        (["--topic", "x/y/z:1"], "TopicNotFound: Namespace not found: x/y"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is allowed only with --advertised-host"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 is not allowed: an address of this machine"),
        (["--port", "65535", "--brokers", "2"], "--nodes 2 is not allowed: at most 1 with --port 65535"),
    ],
)
def test_errors_are_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from asyncgroup.cli import main

    assert main(["broker", "--pulsar", "--port", "0", *arguments]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert err.startswith("asyncgroup broker: ")
    assert words in err


def test_ports_in_use_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    from asyncgroup.cli import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["broker", "--pulsar", "--port", port]) == 1
        assert (
            capsys.readouterr().err
            == f"asyncgroup broker: 127.0.0.1:{port} is in use: choose another --port\n"
        )
        assert main(["broker", "--pulsar", "--port", "0", "--admin-port", port]) == 1
        assert f"127.0.0.1:{port} is in use: choose another --admin-port" in capsys.readouterr().err
        assert main(["broker", "--port", "0", "--admin-port", port]) == 1
        assert "--admin-port is allowed only with --pulsar" in capsys.readouterr().err
