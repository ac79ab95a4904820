"""Administrative commands as processes: terminals, closed pipes, signals, brokers that do not answer or deny."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import io
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from asyncgroup import Producer, TopicPartition
from asyncgroup.admin import Admin
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli import main
from asyncgroup.cli.administration import Report
from asyncgroup.cli.tables import Column
from asyncgroup.errors import UsageError
from tests.cli.admin_commands import Commands
from tests.cli.programs import LIMIT, command, environment, started
from tests.stories.virtual import VirtualEnvironment

LONG = "a-topic-with-a-name-that-is-longer-than-a-narrow-terminal"


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """Run a command on a pseudo-terminal of this width, and return the lines that it prints."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    chosen = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=chosen)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 4096):
            seen += data
    except OSError:  # Linux: the other end is closed
        pass
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return seen.decode().splitlines()


@pytest.mark.real
@pytest.mark.full
async def test_a_table_fits_the_terminal_and_a_pipe_gets_everything() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(LONG, 1)
        arguments = ("topics", "describe", "-b", cluster.bootstrap_servers)
        narrow = await asyncio.to_thread(on_a_terminal, 78, *arguments)
        tiny = await asyncio.to_thread(on_a_terminal, 9, *arguments)
        piped = await asyncio.to_thread(
            subprocess.run, command(*arguments), capture_output=True, text=True, env=environment()
        )
    assert max(map(len, narrow)) == 78
    assert narrow[1].startswith("a-topic-with-a-name-…")
    assert "\x1b" not in "".join(narrow)
    assert [line.split()[0] for line in tiny] == ["TOPIC", "a-topic…"]
    assert piped.stdout.splitlines()[1].split()[0] == LONG


@pytest.mark.real
async def test_a_reader_may_close_the_pipe() -> None:
    async with EmbeddedCluster() as cluster:
        for number in range(300):
            cluster.create_topic(f"{LONG}-{number}", 1)
        shell = " ".join(command("topics", "list", "-b", cluster.bootstrap_servers, "--json"))
        ended = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", f"set -o pipefail; {shell} | head -1"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=LIMIT,
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) == 1


@pytest.mark.real
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
async def test_a_full_disk_is_one_line_and_exit_code_1() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", 1)
        # not forked, so that it ends as Python does
        arguments = [sys.executable, "-m", "asyncgroup", "topics", "list", "-b", cluster.bootstrap_servers]
        with Path("/dev/full").open("w") as full:
            ended = await asyncio.to_thread(
                subprocess.run,
                arguments,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(Path(__file__).parents[2]) | {"PYTHONUNBUFFERED": ""},
                timeout=LIMIT,
            )
    # what is still in the buffer of standard output must not fail again at the end of the process, with code 120
    assert (ended.returncode, ended.stderr) == (
        1,
        "asyncgroup topics list: [Errno 28] No space left on device\n",
    )


def test_ctrl_c_while_the_commands_are_loaded_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "asyncgroup.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "asyncgroup.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    assert main(["topics", "list"]) == 130


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)]
)
def test_a_signal_ends_a_command_that_waits_for_a_broker(number: signal.Signals, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT)
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        with started("groups", "list", "-b", servers) as running:
            connection, _ = silent.accept()
            with connection:
                assert running.end(number) == (code, "", "")


def test_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "-b", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("asyncgroup topics list: no broker answered")
    assert line.endswith("; check -b/--bootstrap-servers and the security options")


async def test_a_denied_request_says_what_to_do(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("CreateTopics", times=None).error("TOPIC_AUTHORIZATION_FAILED")
    printed = await asyncgroup("topics", "create", "t")
    assert (printed.code, printed.table()[1]) == (1, ["t", "failed", "TOPIC_AUTHORIZATION_FAILED"])
    assert printed.err.endswith(
        ": this user needs CREATE on the topic or on the cluster; an administrator can allow it with an ACL "
        "(`asyncgroup acls create`, admin.acls.create, kafka-acls.sh)\n"
    )


async def test_brokers_that_are_silent_cost_the_timeout(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    env.cluster.faults.on("ApiVersions", times=None).drop()
    now = asyncio.get_running_loop().time
    begun = now()
    printed = await asyncgroup("topics", "list", "--timeout", "3")
    assert 2.9 < now() - begun < 3.1
    assert (printed.code, printed.out) == (1, "")
    assert printed.err == (
        f"no broker of {env.bootstrap_servers} answered within 3 s; "
        "check -b/--bootstrap-servers and the security options\n"
    )


def report() -> Report:
    options = argparse.Namespace(command="topics", action="list", json=False, quiet=False, wide=False)
    return Report(options)


def test_a_terminal_without_unicode_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="ascii"))
    report().rows([Column("group", is_name=True)], [{"group": "größe…"}])
    assert output.getvalue() == b"GROUP\ngr\\xf6\\xdfe\\u2026\n"


def test_an_error_is_one_line_and_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    printed = report()
    printed.errors({"a": UsageError("one\ntwo\x1b[2J"), "b": UsageError("one\ntwo\x1b[2J")})
    assert printed.exit_code == 1
    assert capsys.readouterr().err == "asyncgroup topics list: one\\ntwo\\x1b[2J\n"


def test_a_program_without_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`>&-` in a shell: rows are dropped, as by `print`, and errors are printed and counted."""
    printed = report()
    with monkeypatch.context() as closed:
        closed.setattr("sys.stdout", None)
        printed.rows([Column("group", is_name=True)], [{"group": "g"}])
        assert printed.exit_code == 0
        printed.error("group 'g' is gone")
    assert printed.exit_code == 1
    assert capsys.readouterr() == ("", "asyncgroup topics list: group 'g' is gone\n")


@pytest.mark.real
@pytest.mark.full
async def test_the_live_table_is_drawn_until_ctrl_c() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", 2)
        async with Admin(cluster.bootstrap_servers) as admin:
            offsets = {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0}
            (await admin.alter_group_offsets("g", offsets)).raise_first()
        arguments = ("groups", "lag", "g", "--watch", "--interval", "0.1", "-b", cluster.bootstrap_servers)
        seen, code = await asyncio.to_thread(watched_on_a_terminal, arguments, b"\x1b[H", 3)
    assert code == 130
    first, second, *_ = seen.split("\x1b[H")[1:]
    assert first.startswith("\x1b[J")
    lines = [line.removesuffix("\x1b[K") for line in second.removesuffix("\x1b[J").splitlines()]
    assert lines[0] == "g, every 0.1 s; Ctrl-C ends"
    assert lines[1].split()[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["g", "-", "-"],
        ["g", "orders", "0"],
        ["g", "orders", "1"],
    ]
    assert lines[2].split()[5:9] == ["0", "0.0", "0.0", "0s"]
    assert max(map(len, lines)) <= 100


def watched_on_a_terminal(arguments: tuple[str, ...], frame: bytes, frames: int) -> tuple[str, int]:
    """Run a command on a pseudo-terminal of 100 columns until it has drawn `frames` of them, and end it with Ctrl-C."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    chosen = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=chosen)
    os.close(theirs)
    seen = b""
    try:
        while seen.count(frame) <= frames:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return seen.decode().replace("\r\n", "\n"), code


@pytest.mark.real
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
async def test_a_full_disk_is_one_line_for_a_member_of_a_group() -> None:
    """Nothing was printed, so nothing is committed; the handler of the command did not fail."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", 1)
        servers = cluster.bootstrap_servers
        async with Producer(servers) as producer:
            await producer.send("orders", b"1")
        given = ("consume", "-b", servers, "-t", "orders", "--group", "g", "--from", "earliest")
        with Path("/dev/full").open("w") as full:
            ended = await asyncio.to_thread(
                subprocess.run,
                command(*given),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                timeout=LIMIT,
            )
        assert cluster.group("g").offsets == {}
    assert (ended.returncode, ended.stderr) == (
        1,
        "asyncgroup consume: [Errno 28] No space left on device\n",
    )
