"""Output and exit codes of `consume` and `produce`: terminals and pipes, failed commits, signals, a simulated Windows."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli import main
from asyncgroup.cli.printing import record_format
from asyncgroup.model import Record
from tests.cli.programs import LIMIT, broker, command, environment, run, started

pytestmark = pytest.mark.real

CONTROL_CHARACTERS = b"a\x1b[2Jb\r\x9b\xff\xe2\x80\xae"


def record(value: bytes | None) -> Record:
    return Record("t", 0, 7, value=value)


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "piped", "shown"),
    [
        (b"plain \xc3\xa9", b"plain \xc3\xa9", b"plain \xc3\xa9"),
        (CONTROL_CHARACTERS, CONTROL_CHARACTERS, b"a\\x1b[2Jb\\r\\x9b\\xff\\u202e"),
        (None, b"null", b"null"),
        (b"", b"", b""),
    ],
)
def test_values(value: bytes | None, piped: bytes, shown: bytes) -> None:
    assert record_format("value", for_terminal=False)(record(value)) == piped
    assert record_format("value", for_terminal=True)(record(value)) == shown


def test_escaped_json_is_the_same_object() -> None:
    value = "a\x1b[2J\x9b\u202e\U000e0001é".encode()
    piped, shown = (record_format("json", for_terminal=on)(record(value)).decode() for on in (False, True))
    assert shown.isprintable()
    assert not piped.isprintable()
    assert json.loads(piped) == json.loads(shown)
    assert json.loads(shown)["value"].encode() == value
    assert json.loads(record_format("json", for_terminal=True)(record(None)))["value"] is None
    assert json.loads(record_format("json", for_terminal=True)(record(b"")))["value"] == ""


def on_a_terminal(arguments: tuple[str, ...], is_complete: Callable[[bytes], bool]) -> bytes:
    """Run a command on a pseudo-terminal, and return its output once `is_complete` returns True for it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*arguments), stdout=theirs, stderr=subprocess.DEVNULL, stdin=theirs, env=environment()
    )
    os.close(theirs)
    seen = b""
    try:
        while not is_complete(seen) and select.select([ours], [], [], LIMIT)[0]:
            seen += os.read(ours, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return seen


async def test_a_terminal_gets_escapes_and_a_pipe_the_bytes() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", 1)
        async with Producer(cluster.bootstrap_servers) as producer:
            for value in (CONTROL_CHARACTERS, None, b"", b"end"):
                await producer.send("t", value)
        arguments = ("consume", "-b", cluster.bootstrap_servers, "-t", "t", "--from", "earliest")
        seen = await asyncio.to_thread(on_a_terminal, arguments, lambda seen: b"end" in seen)
        assert seen.split(b"\r\n")[:4] == [b"a\\x1b[2Jb\\r\\x9b\\xff\\u202e", b"null", b"", b"end"]
        piped = await asyncio.to_thread(
            subprocess.run,
            command(*arguments, "--max-messages", "4"),
            capture_output=True,
            env=environment(),
            timeout=LIMIT,
        )
        assert piped.stdout == CONTROL_CHARACTERS + b"\nnull\n\nend\n"


# --- commits ----------------------------------------------------------------------------------------------------------


async def test_consume_fails_if_its_commit_fails() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", 1)
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", b"a")
        cluster.faults.on("OffsetCommit", times=1000).error("GROUP_AUTHORIZATION_FAILED")
        arguments = ("consume", "-b", cluster.bootstrap_servers, "-t", "t", "--from", "earliest")
        arguments += ("--group", "g", "--max-messages", "1", "-X", "auto.commit.interval.ms=60000")
        ended = await asyncio.to_thread(run, *arguments)
        assert (ended.returncode, ended.stdout) == (1, "a\n")
        *_, last = ended.stderr.splitlines()
        assert last.startswith("asyncgroup consume: group 'g': offsets of 1 partition(s) not committed: t-0")
        assert "GROUP_AUTHORIZATION_FAILED" in last


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_exit_codes_of_signals(number: signal.Signals, code: int) -> None:
    with broker("--topic", "t:1") as servers:
        run("produce", "-b", servers, "-t", "t", stdin="a\n")
        arguments = ("consume", "-b", servers, "-t", "t", "--from", "earliest")
        for group in ((), ("--group", "g")):
            with started(*arguments, *group) as consumer:
                assert consumer.line() == "a\n"
                assert consumer.end(number) == (code, "", "")
        assert produce_until_signal(servers, number) == (code, "2 records (2 B) in")


def produce_until_signal(
    servers: str, number: signal.Signals, path: tuple[Path, ...] = ()
) -> tuple[int, str]:
    """Stop `produce` by a signal after two lines; return its exit code and the beginning of its report."""
    process = subprocess.Popen(
        command("produce", "-b", servers, "-t", "t"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(*path),
    )
    assert process.stdin is not None
    process.stdin.write("b\nc\n")
    process.stdin.flush()
    run("consume", "-b", servers, "-t", "t", "--from", "earliest", "--max-messages", "3")
    process.send_signal(number)
    assert process.stderr is not None
    with (
        process.stdin,
        process.stderr,
    ):  # its input stays open until it has ended, as the end of input would also end it
        err = process.stderr.read()
        return process.wait(LIMIT), err[:18]


WINDOWS = """
import asyncio, sys
def refuse(self, *_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = refuse
asyncio.SelectorEventLoop.remove_signal_handler = refuse
class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty"):
            raise ModuleNotFoundError(f"no module named {name!r}", name=name)
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, NotThere())
import os, signal
os.process_cpu_count = os.cpu_count  # from Python 3.13 on; it needs sched_getaffinity where that is
for module, names in ((os, "fork getuid geteuid sysconf sched_getaffinity"), (signal, "SIGKILL SIGHUP SIGPIPE")):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)]
)
def test_without_signal_handlers_of_the_event_loop(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Simulate Windows: `add_signal_handler` raises NotImplementedError, and Unix modules are missing."""
    (tmp_path / "sitecustomize.py").write_text(WINDOWS)
    path = (tmp_path,)
    with started("broker", "--port", "0", "--topic", "t:1", path=path) as cluster:
        servers = cluster.line().removeprefix("bootstrap: ").strip()
        assert run("produce", "-b", servers, "-t", "t", stdin="a\n", path=path).returncode == 0
        with started(
            "consume", "-b", servers, "-t", "t", "--group", "g", "--from", "earliest", path=path
        ) as consumer:
            assert consumer.line() == "a\n"
            assert consumer.end(number) == (code, "", "")
        assert produce_until_signal(servers, number, path) == (code, "2 records (2 B) in")
        ended = cluster.end(number)
        assert ended == (code, "", "")


# --- the report of produce --------------------------------------------------------------------------------------------


async def test_produce_reports_acknowledged_records_after_errors() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", 1)
        cluster.faults.on("Produce", nth=2, times=1000).error("TOPIC_AUTHORIZATION_FAILED")
        process = await asyncio.to_thread(
            subprocess.Popen,
            command("produce", "-b", cluster.bootstrap_servers, "-t", "t"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        process.stdin.write("a\nb\n")
        process.stdin.flush()
        while cluster.partition("t", 0).log_end_offset < 2:
            await asyncio.sleep(0.01)
        _, err = await asyncio.to_thread(process.communicate, "c\nd\ne\n", LIMIT)
        first, second = err.splitlines()
        assert first.startswith("2 of 5 records acknowledged in ")
        assert second.startswith("asyncgroup produce: 3 records not delivered: ")
        assert process.returncode == 1


def test_produce_reports_acknowledged_records_after_a_bad_line() -> None:
    with broker("--topic", "t:1") as servers:
        ended = run("produce", "-b", servers, "-t", "t", "--key-separator", "::", stdin="a::b\nc\n")
    first, second = ended.stderr.splitlines()
    assert first.startswith("1 record (4 B) in ")
    assert second == "asyncgroup produce: line 2 has no separator '::': 'c'"
    assert ended.returncode == 1


def test_a_closed_standard_error_is_ignored() -> None:
    """Standard error is a pipe whose reader has closed it."""
    with broker("--topic", "t:1") as servers:
        ours, theirs = os.pipe()
        os.close(ours)
        ended = subprocess.run(
            command("produce", "-b", servers, "-t", "t"),
            input=b"a\n",
            stderr=theirs,
            env=environment(),
            timeout=LIMIT,
            check=False,
        )
        os.close(theirs)
        assert ended.returncode == 0
        shown = run("consume", "-b", servers, "-t", "t", "--from", "earliest", "--max-messages", "1")
        assert shown.stdout == "a\n"


def test_an_error_shows_no_control_characters_of_an_unknown_key(capsys: pytest.CaptureFixture[str]) -> None:
    """The key is an argument, or a line of a file of properties."""
    key = "a\x1b[31m\u202eb\nc"
    assert main(["consume", "-t", "t", "-b", "127.0.0.1:1", "-X", f"{key}=1"]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(r"asyncgroup consume: a\x1b[31m\u202eb\nc='1' is not allowed: there is no such key")
    assert err.count("\n") == 1


def test_an_unexpected_error_shows_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a\x1b[31m\u202eb")

    monkeypatch.setattr("asyncgroup.cli.consume._consume_options", fail)
    assert main(["consume", "-t", "t", "-b", "127.0.0.1:1"]) == 1
    expected = r"unexpected RuntimeError: a\x1b[31m\u202eb (-v shows the traceback)"
    assert capsys.readouterr().err == f"asyncgroup consume: {expected}\n"
