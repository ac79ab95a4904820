"""Run `python -m MODULE …` as processes that are forked with the module's imports done (`tests/forked/launcher.py`).

Otherwise a command of the package costs 0.3 s of CPU before it begins, and a pytest 0.6 s; tests start some hundreds of
them. Tests of imports, or with other module search paths, start real ones.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import gc
import importlib
import io
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NoReturn, TypeAlias

__all__ = ["forked", "forking"]

ROOT: Final = Path(__file__).parents[2]
Kind: TypeAlias = Literal["commands", "pytest", "spark"]

PACKAGES: Final[dict[Kind, tuple[str, ...]]] = {
    "commands": (
        "broker",
        "cli",
        "cluster",
        "consumer",
        "demo",
        "group",
        "offsets",
        "producer",
        "wire",
        "workqueue",
    ),
    "pytest": (
        "broker",
        "wire",
    ),  # none with a plugin of pytest (anyio has one), which pytest rewrites when it loads it
    "spark": ("broker", "cluster", "consumer", "group", "offsets", "producer", "wire"),
}
"""Packages of asyncgroup whose modules a server imports."""

OF_SPARK: Final = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "asyncgroup.spark.data_source",
)
"""Modules that Spark's Python processes import or run; pandas is not everywhere."""

GRACE: Final = 10
"""Seconds in which Spark's Python processes must have ended after Spark."""


def forked(module: str, *arguments: str) -> list[str]:
    """Return the command of a process that is forked if its environment is one of `forking`."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")), module, *arguments]


def forking(environment: Mapping[str, str], kind: Kind) -> dict[str, str]:
    """Return the environment with the address of this process's server of that kind."""
    return {**environment, "ASYNCGROUP_TESTS_SERVER": _server(kind)}


@functools.cache
def _server(kind: Kind) -> str:
    """Start a server, which ends with this process, and return its address."""
    directory = tempfile.TemporaryDirectory(prefix="asyncgroup-tests-")
    address = str(Path(directory.name) / "server")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, kind, address],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(directory.cleanup)
    atexit.register(server.communicate)  # closes its standard input, and waits for it
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return address


def _import_all(kind: Kind) -> None:
    import asyncgroup

    if kind == "spark":
        _import_modules_of_spark()

    for package in PACKAGES[kind]:
        for module in pkgutil.walk_packages(
            [f"{asyncgroup.__path__[0]}/{package}"], f"asyncgroup.{package}."
        ):
            if not module.name.endswith((".__main__", ".generate")):
                importlib.import_module(module.name)
    if kind == "pytest":
        from _pytest.config import default_plugins

        for plugin in default_plugins:
            importlib.import_module(f"_pytest.{plugin}")


def _import_modules_of_spark() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads would be lost by a fork
    readers = importlib.import_module("asyncgroup.spark.source")
    found = pkgutil.walk_packages(readers.__path__, "asyncgroup.spark.source.")
    for module in (*OF_SPARK, *(each.name for each in found)):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def serve(kind: Kind, address: str) -> str:
    """Fork a program for each connection. Returns in the program only: the name of its module."""
    _import_all(kind)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    threads = threading.active_count()
    assert threads == 1, f"{threads} threads would be lost by a fork"
    print("ready", flush=True)
    while (
        0 not in select.select([0, listener], [], [])[0]
    ):  # its standard input is closed when the tests have ended
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            return _supervise(connection)
        connection.close()
        _remove_ended(os.WNOHANG)
    if kind == "spark":
        # Spark has ended, and so do its processes; one that does not must not hold up the end of the tests
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
        signal.alarm(GRACE)
    _remove_ended(0)
    os._exit(0)


def _remove_ended(options: int) -> None:
    """Wait for supervisors, whose CPU time then counts as that of the tests; all of them, or with WNOHANG those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _supervise(connection: socket.socket) -> str:
    """Fork the program and report its end; kill it if its launcher has ended. Returns in the program."""
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    request = b""
    while len(request) < int.from_bytes(head, "big"):
        request += connection.recv(1 << 16)
    reading, writing = os.pipe()
    program = os.fork()
    if not program:
        os.close(writing)
        os.read(reading, 1)  # until the supervisor is ready
        os.close(reading)
        connection.close()
        return _become(files, *ast.literal_eval(request.decode()))
    for file in files:
        os.close(file)

    def ended(*_: object) -> NoReturn:
        status = os.waitpid(program, 0)[1]
        with contextlib.suppress(BrokenPipeError):  # the launcher may have been killed at the same time
            connection.sendall(status.to_bytes(4, "big"))
        os._exit(0)

    signal.signal(signal.SIGCHLD, ended)
    connection.sendall(program.to_bytes(4, "big"))
    os.close(reading)
    os.close(writing)
    connection.recv(1)
    os.kill(program, signal.SIGKILL)
    os._exit(0)


def _become(files: list[int], directory: str, environment: dict[str, str], arguments: list[str]) -> str:
    """Take over the launcher's files, directory and environment, as a new interpreter with `-u` would; return the module."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    own = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [directory, *own, *(each for each in sys.path[1:] if each != str(ROOT))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # the program's own modules may have this name
    module, *sys.argv[1:] = arguments
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # runpy warns of a module that is there already
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        text = io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), errors=errors, write_through=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    return module


if __name__ == "__main__":
    kinds: dict[str, Kind] = {kind: kind for kind in PACKAGES}
    program = serve(kinds[sys.argv[1]], sys.argv[2])
    # not within a function that catches: what the program raises ends this process as it would end the interpreter
    runpy.run_module(program, run_name="__main__", alter_sys=True)
