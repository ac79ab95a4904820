"""pyspark's daemon and workers whose socket is closed, without Spark: the test takes the place of its JVM."""

from __future__ import annotations

import io
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path

import pytest

from asyncgroup.spark.option_words import SINK_WORDS, SOURCE_WORDS
from asyncgroup.spark.quiet_daemon import silence_closed_sockets
from asyncgroup.spark.worker_process import strip_batch_tracebacks, strip_traceback

pytest.importorskip("pyspark")

WORKER = """
from asyncgroup.spark.quiet_daemon import silence_closed_sockets

def main(infile, outfile):
    if {is_quiet}:
        silence_closed_sockets()
    outfile.write(b"ready")
    outfile.flush()
    infile.read()  # until the socket is closed
    {failing}
    outfile.write(b"rows that are not wanted")
"""
"""The module of a worker; the daemon accepts those whose names begin with `pyspark`."""


def stderr_of_daemon(*, is_quiet: bool, failing: str = "") -> str:
    """Run the daemon with one worker, close the worker's socket, and return what both print to stderr."""
    with tempfile.TemporaryDirectory(
        prefix="daemon-"
    ) as directory:  # the path of a socket can have 107 characters
        Path(directory, "pyspark_closed.py").write_text(WORKER.format(is_quiet=is_quiet, failing=failing))
        path = os.pathsep.join([directory, *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": directory,
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # Spark's default
        }
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "pyspark.daemon", "pyspark_closed"]
        with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
            assert daemon.stdout is not None
            (length,) = struct.unpack("!i", daemon.stdout.read(4))
            address = daemon.stdout.read(length).decode()
            with socket.socket(socket.AF_UNIX) as worker, worker.makefile("rb") as received:
                worker.connect(address)
                (pid,) = struct.unpack("!i", received.read(4))
                assert received.read(len("ready")) == b"ready"
            wait_until_ended(pid)
            _, text = daemon.communicate(timeout=60)
    return text.decode()


def wait_until_ended(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one."""
    deadline = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.01)
        pytest.fail(f"process {pid} has not ended")


@pytest.mark.full
@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_closed_socket(is_quiet: bool) -> None:
    text = stderr_of_daemon(is_quiet=is_quiet)
    assert ("BrokenPipeError: [Errno 32]" in text) is not is_quiet, text
    assert bool(text) is not is_quiet


@pytest.mark.full
def test_errors_of_the_function_are_printed() -> None:
    raising = "raise BrokenPipeError('of the function')"
    assert "BrokenPipeError: of the function" in stderr_of_daemon(is_quiet=True, failing=raising)


# --- in this process --------------------------------------------------------------------------------------------------

DAEMON = """
import traceback

def flush(error):
    raise error

def manager(function):
    try:
        function()
    except BaseException:
        traceback.print_exc()
"""


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module in the place of pyspark's."""
    module = types.ModuleType("pyspark.daemon")
    exec(DAEMON, module.__dict__)
    monkeypatch.setitem(sys.modules, "pyspark.daemon", module)
    silence_closed_sockets()
    silence_closed_sockets()
    return module


def printed(daemon: types.ModuleType, error: BaseException, *, by_daemon: bool) -> str:
    def fail() -> None:
        raise error

    with redirect_stderr(io.StringIO()) as stderr:
        daemon.manager((lambda: daemon.flush(error)) if by_daemon else fail)
    return stderr.getvalue()


def test_only_the_daemons_own_flush_is_silent(daemon: types.ModuleType) -> None:
    assert printed(daemon, BrokenPipeError(32, "Broken pipe"), by_daemon=True) == ""
    assert "Broken pipe" in printed(daemon, BrokenPipeError(32, "Broken pipe"), by_daemon=False)
    assert "ValueError: x" in printed(daemon, ValueError("x"), by_daemon=True)
    assert daemon.traceback.format_exc is traceback.format_exc


def test_each_method_that_spark_calls_makes_its_process_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Callable[[], object]] = [
        strip_traceback(SINK_WORDS)(lambda: None),
        lambda: list(strip_batch_tracebacks(iter([1]), SOURCE_WORDS)),
    ]
    for call in calls:
        module = types.ModuleType("pyspark.daemon")
        exec(DAEMON, module.__dict__)
        monkeypatch.setitem(sys.modules, "pyspark.daemon", module)
        call()
        assert printed(module, BrokenPipeError(32, "Broken pipe"), by_daemon=True) == ""


def test_a_process_without_daemon_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark.daemon", raising=False)
    silence_closed_sockets()
    assert "pyspark.daemon" not in sys.modules
