"""`broker`, `produce` and `consume` as separate processes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.net.security import ListenerSecurity
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import OffsetManager
from tests.cli.programs import LIMIT, broker, command, environment, free_ports, run, started
from tests.real.certificates import Authority

pytestmark = pytest.mark.real


async def committed(servers: str, group: str, topic: str, partitions: int) -> list[int]:
    async with Cluster(servers) as cluster:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        found = await OffsetManager(cluster, group).fetch(asked)
        return [found[tp].offset if tp in found else 0 for tp in asked]


async def test_produce_and_consume_and_ctrl_c_commits(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"key{n % 10}:line {n}\n" for n in range(1_000)))
    port = free_ports(3)
    with broker("--topic", "lines:3", "--nodes", "3", port=port) as servers:
        assert servers == f"127.0.0.1:{port},127.0.0.1:{port + 1},127.0.0.1:{port + 2}"
        written = run("produce", "-b", servers, "-t", "lines", "--key-separator", ":", str(file))
        assert (written.returncode, written.stdout) == (0, "")
        assert written.stderr.startswith("1,000 records (12.9 kB) in "), written.stderr
        assert written.stderr.rstrip().endswith("records/s")

        arguments = ("consume", "-b", servers, "-t", "lines", "--group", "readers", "--from", "earliest")
        with started(*arguments) as consumer:
            lines = consumer.lines(1_000)
            code, out, err = consumer.end(signal.SIGINT)
        assert (code, out, err) == (130, "", "")
        assert sorted(lines) == sorted(f"line {n}\n" for n in range(1_000))
        assert sum(await committed(servers, "readers", "lines", 3)) == 1_000

        # the member has left the group: another one starts at once, after the committed offsets
        run("produce", "-b", servers, "-t", "lines", stdin="one more\n")
        with started(*arguments, "--format", "json") as consumer:
            record = json.loads(consumer.line())
            code, out, err = consumer.end(signal.SIGTERM)
        assert (code, out, err) == (143, "", "")
        assert (record["topic"], record["key"], record["value"]) == ("lines", None, "one more")
        assert sum(await committed(servers, "readers", "lines", 3)) == 1_001


@pytest.mark.full
def test_max_messages_is_exact_and_commits_what_was_printed() -> None:
    with broker("--topic", "t:2") as servers:
        run("produce", "-b", servers, "-t", "t", stdin="".join(f"{n}\n" for n in range(50)))
        arguments = ("consume", "-b", servers, "-t", "t", "--from", "earliest")
        first = run(*arguments, "--group", "g", "--max-messages", "20")
        assert (first.returncode, first.stderr) == (0, "")
        assert len(first.stdout.splitlines()) == 20
        second = run(*arguments, "--group", "g", "--max-messages", "30")
        assert (second.returncode, second.stderr) == (0, "")
        nothing_left = run(*arguments, "--group", "g", "--timeout", "1")
        assert (nothing_left.returncode, nothing_left.stdout, nothing_left.stderr) == (0, "", "")
        printed = first.stdout.splitlines() + second.stdout.splitlines()
        assert sorted(printed, key=int) == [str(n) for n in range(50)]
        alone = run(*arguments, "--max-messages", "7")
        assert (alone.returncode, alone.stderr, len(alone.stdout.splitlines())) == (0, "", 7)


def test_invalid_utf8_is_printed_as_base64_in_json() -> None:
    with broker("--topic", "t:1") as servers:
        subprocess.run(
            command("produce", "-b", servers, "-t", "t", "--key-separator", "\\t"),
            input=b"\xff\t\xe2\x82\xac\n",
            env=environment(),
            check=True,
            capture_output=True,
            timeout=60,
        )
        shown = run(
            "consume",
            "-b",
            servers,
            "-t",
            "t",
            "--from",
            "earliest",
            "--max-messages",
            "1",
            "--format",
            "json",
        )
        record = json.loads(shown.stdout)
        assert record["key"] == {"base64": "/w=="}
        assert record["value"] == "€"
        assert (record["partition"], record["offset"]) == (0, 0)


def test_consume_ends_without_error_if_the_pipe_is_closed() -> None:
    with broker("--topic", "t:1") as servers:
        run("produce", "-b", servers, "-t", "t", stdin="".join(f"{n}\n" for n in range(20_000)))
        for group in ([], ["--group", "g"]):
            process = subprocess.Popen(
                command("consume", "-b", servers, "-t", "t", "--from", "earliest", *group),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(),
            )
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"0\n"
            process.stdout.close()
            assert process.stderr.read() == b""
            process.stderr.close()
            assert process.wait(60) == 0


def test_ctrl_c_in_produce_writes_what_was_read() -> None:
    with broker("--topic", "t:1") as servers:
        process = subprocess.Popen(
            command("produce", "-b", servers, "-t", "t"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert process.stdin is not None
        process.stdin.write("one\ntwo\n")
        process.stdin.flush()
        # a line from a terminal is produced without waiting for the next one
        seen = run("consume", "-b", servers, "-t", "t", "--from", "earliest", "--max-messages", "2")
        assert seen.stdout == "one\ntwo\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        with process.stdin, process.stderr:  # its input stays open, as the end of input would also end it
            err = process.stderr.read()
            assert process.wait(LIMIT) == 130
        assert err.startswith("2 records (6 B)")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_broker_stops_cleanly(number: signal.Signals) -> None:
    with started("broker", "--port", "0") as program:
        assert program.line().startswith("bootstrap: 127.0.0.1:")
        assert program.end(number) == (128 + number, "", "")


# -- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["consume", "-t", "t"],
            "-b/--bootstrap-servers is required (or bootstrap.servers in -X, in --config or",
        ),
        (["produce", "-t", "t", "-X", "linger.ms"], "argument -X: expected NAME=VALUE"),
        (["consume", "-b", "localhost", "-t", "t"], "host:port"),
        (["consume", "-b", "localhost:9", "-t", "no spaces"], "1 to 249 of the characters"),
        (
            ["consume", "-b", "localhost:9", "-t", "t", "--max-messages", "0"],
            "'0' is not a whole number, 1 or more",
        ),
        (
            ["consume", "-b", "localhost:9", "-t", "t", "--timeout", "soon"],
            "'soon' is not a number of seconds",
        ),
        (["consume", "-b", "localhost:9", "-t", "t", "--group", " "], "a string that is not empty"),
        (["produce", "-b", "localhost:9", "-t", "t", "--key-separator", ""], "the separator is empty"),
        (["broker", "--port", "70000"], "'70000' is not a port"),
        (["broker", "--topic", "orders"], "'orders' is not NAME:PARTITIONS"),
        (["broker", "--topic", "or ders:3"], "1 to 249 of the characters"),
        (["broker", "--topic", "orders:٣"], "'orders:٣' is not NAME:PARTITIONS"),
        (["broker", "--topic", "orders:"], "'orders:' is not NAME:PARTITIONS[:KEY=VALUE...]"),
        (["broker", "--topic", "orders:3:compact"], "'compact' in 'orders:3:compact' is not KEY=VALUE"),
        (["broker", "--topic", "orders:3:=x"], "'=x' in 'orders:3:=x' is not KEY=VALUE"),
        (["broker", "--host", " "], "the host is empty"),
        (["broker", "--advertised-host", ""], "the host is empty"),
        (["demo", "--keep", "/"], "not an empty directory"),
        (["nothing"], "invalid choice: 'nothing'"),
        ([], "COMMAND"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    from asyncgroup.cli import main

    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def unused_server() -> str:
    with socket.create_server(("127.0.0.1", 0)) as once:
        return f"127.0.0.1:{once.getsockname()[1]}"


@pytest.mark.parametrize("command_and_more", [["consume"], ["consume", "--group", "g"], ["produce"]])
def test_an_unreachable_cluster_is_a_one_line_error(command_and_more: list[str]) -> None:
    server = unused_server()
    ended = run(*command_and_more, "-b", server, "-t", "t")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith(f"asyncgroup {command_and_more[0]}: no broker answered")
    assert server in ended.stderr


def test_v_shows_the_traceback() -> None:
    ended = run("consume", "-v", "-b", unused_server(), "-t", "t")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "NoBrokersError" in ended.stderr


@pytest.mark.full
def test_unknown_topics_missing_files_and_lines_without_separator() -> None:
    with broker() as servers, ThreadPoolExecutor() as pool:
        unknown = ("consume", "-b", servers, "-t", "nowhere")
        # both take some seconds: the topic may just be being created
        both = pool.map(lambda group: run(*unknown, *group), ([], ["--group", "g"]))
        ended = run("produce", "-b", servers, "-t", "t", "/no/such/file")
        assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
        assert (
            ended.stderr == "asyncgroup produce: file='/no/such/file' is not allowed: "
            "a file that can be read: No such file or directory\n"
        )
        ended = run("produce", "-b", servers, "-t", "t", "/")
        assert ended.returncode == 1
        assert ended.stderr.startswith("0 records (0 B) in ")
        assert ended.stderr.endswith("\nasyncgroup produce: [Errno 21] Is a directory: '/'\n")
        ended = run("produce", "-b", servers, "-t", "t", "--key-separator", "::", stdin="a::b\nc\n")
        assert ended.returncode == 1
        assert ended.stderr.startswith("1 record (4 B) in ")
        assert ended.stderr.endswith("\nasyncgroup produce: line 2 has no separator '::': 'c'\n")
        for ended in both:
            assert ended.returncode == 1
            assert len(ended.stderr.splitlines()) == 1
            assert "'nowhere'" in ended.stderr


@pytest.mark.parametrize(("command", "closed"), [("produce", "<&-"), ("consume", ">&-")])
def test_a_missing_standard_input_or_output_is_an_error(command: str, closed: str) -> None:
    with broker() as servers:
        run("produce", "-b", servers, "-t", "t", stdin="a\n")
        start = "" if command == "produce" else "--from earliest"
        line = f"{sys.executable} -m asyncgroup {command} -b {servers} -t t {start} {closed}"
        ended = subprocess.run(
            ["sh", "-c", line],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=LIMIT,
            check=False,
        )
    what = "input" if command == "produce" else "output"
    assert ended.stderr == f"asyncgroup {command}: [Errno 9] Bad file descriptor: 'standard {what}'\n"
    assert ended.returncode == 1


def test_the_error_names_the_port_in_use() -> None:
    """The port in use is the second one."""
    port = free_ports(3)
    with socket.create_server(("127.0.0.1", port + 1)):
        ended = run("broker", "--port", str(port), "--nodes", "3")
    assert ended.returncode == 1
    assert ended.stderr == f"asyncgroup broker: 127.0.0.1:{port + 1} is in use: choose another --port\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topic", "a:1:retention.seconds=3"], "--topic a:1:retention.seconds=3: "),
        (["--topic", "a:1:retention.ms=soon"], "--topic a:1:retention.ms=soon: "),
        (["--topic", "a:1", "--topic", "a:2"], "--topic a:2: 'a' is given twice"),
        (["--host", "nowhere.invalid"], "--host nowhere.invalid is not allowed: an address of this machine"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 is not allowed: an address of this machine"),
        (
            ["--data-dir", "/dev/null/data"],
            "--data-dir /dev/null/data cannot be used: [Errno 20] Not a directory",
        ),
        (["--data-dir", "/dev/null"], "--data-dir /dev/null cannot be used: it is not a directory"),
        (["--port", "65535", "--nodes", "2"], "--nodes 2 is not allowed: at most 1 with --port 65535"),
    ],
)
def test_errors_of_the_broker_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from asyncgroup.cli import main

    assert main(["broker", "--port", "0", *arguments]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert err.startswith("asyncgroup broker: ")
    assert words in err


# -- a secured cluster ---------------------------------------------------------------------------------------------------


async def test_tls_and_sasl_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    cert = authority.sign("broker", "IP:127.0.0.1")
    security = ListenerSecurity(cert_file=cert, users={"alice": "s3cret"})
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nlinger.ms=1\nauto.offset.reset=earliest\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.ca_file}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '  username="alice" password="s3cret";\n'
    )
    async with EmbeddedCluster(security=security) as cluster:
        cluster.create_topic("t", 1)
        connected = ("-b", cluster.bootstrap_servers, "--config", str(file))
        written = await asyncio.to_thread(run, "produce", *connected, "-t", "t", stdin="a\n")
        assert (written.returncode, written.stderr[:15]) == (0, "1 record (1 B) ")
        monkeypatch.setenv("ASYNCGROUP_CONFIG", str(file))
        monkeypatch.setenv("ASYNCGROUP_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
        shown = await asyncio.to_thread(run, "consume", "-t", "t", "--group", "g", "--max-messages", "1")
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, "a\n", "")
        wrong = ("-X", "sasl.jaas.config=", "-X", "sasl.username=alice", "-X", "sasl.password=wr0ng")
        refused = await asyncio.to_thread(run, "consume", "-t", "t", *wrong)
        assert refused.returncode == 1
        assert "SASL/SCRAM-SHA-512 as user 'alice': SASL_AUTHENTICATION_FAILED" in refused.stderr
        assert "wr0ng" not in refused.stderr
        monkeypatch.delenv("ASYNCGROUP_CONFIG")
        demo = ("demo", *connected, "--no-spark", "--rows", "500", "--json")
        result = await asyncio.to_thread(run, *demo)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["bootstrap_servers"] == cluster.bootstrap_servers


# -- the broker ----------------------------------------------------------------------------------------------------------


def test_data_dir_keeps_records(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--topic", "kept:2:retention.ms=-1")
    with broker(*arguments) as servers:
        run("produce", "-b", servers, "-t", "kept", stdin="".join(f"{n}\n" for n in range(50)))
        ended = run("broker", "--port", "0", *arguments)
        assert ended.returncode == 1
        assert len(ended.stderr.splitlines()) == 1
        assert f"{tmp_path / 'data'} is in use by another cluster" in ended.stderr
    with broker(*arguments) as servers:
        shown = run("consume", "-b", servers, "-t", "kept", "--from", "earliest", "--max-messages", "50")
        assert sorted(shown.stdout.split(), key=int) == [str(n) for n in range(50)]


def test_the_ready_line_for_scripts_and_the_advertised_host() -> None:
    with started(
        "broker", "--port", "0", "--nodes", "2", "--json", "--advertised-host", "localhost"
    ) as program:
        ready = json.loads(program.line())
        assert ready["bootstrap_servers"] == ",".join(f"localhost:{node['port']}" for node in ready["nodes"])
        assert [(node["id"], node["host"]) for node in ready["nodes"]] == [(1, "localhost"), (2, "localhost")]
        assert program.end(signal.SIGTERM) == (143, "", "")


def test_v_logs_members_and_commits() -> None:
    with started("broker", "-v", "--port", "0", "--topic", "t:1") as program:
        servers = program.line().removeprefix("bootstrap: ").strip()
        run("produce", "-b", servers, "-t", "t", stdin="a\nb\n")
        run("consume", "-b", servers, "-t", "t", "--group", "g", "--from", "earliest", "--max-messages", "2")
        code, _, log = program.end(signal.SIGINT)
    assert code == 130
    member = r"asyncgroup-consume-[0-9a-f-]{36}"
    for expected in (
        r"node 1 listens on 127\.0\.0\.1:\d+",
        r"topic t: created with 1 partition",
        rf"group g: member {member} joined, client 'asyncgroup-consume' from 127\.0\.0\.1; client reason: .+",
        rf"group g: rebalance after generation 0: new member {member}; client reason: .+",
        rf"group g: generation 1 has 1 member, leader {member}, protocol range",
        rf"group g: member {member} left; client reason: .+",
        r"group g: \d+ commits?; t-0 at 2",
        r"node 1 stopped",
    ):
        assert re.search(rf"^\d\d:\d\d:\d\d\.\d\d\d {expected}$", log, re.MULTILINE), (expected, log)


def test_help_names_every_command() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for name in ("demo", "broker", "produce", "consume"):
        assert f"  {name} " in shown.stdout
    assert sys.executable not in shown.stdout
