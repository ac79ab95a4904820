"""Run `python -m asyncgroup …` as processes that are forked with the package imported (`tests/cli/launcher.py`).

A process costs 0.3 s of CPU otherwise, nearly all of it for imports, and the tests of the commands start a hundred.
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
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["server_address"]

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("broker", "cli", "cluster", "consumer", "group", "offsets", "producer", "wire")


@functools.cache
def server_address() -> str:
    """Return the address of this process's server, started at the first call; it ends with this process."""
    directory = tempfile.TemporaryDirectory(prefix="asyncgroup-tests-")
    address = str(Path(directory.name) / "server")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, address],
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


def serve(address: str) -> None:
    """Fork a program for each connection. Returns in the program only, whose arguments are then in `sys.argv`."""
    import asyncgroup

    for package in PACKAGES:
        for module in pkgutil.walk_packages(
            [f"{asyncgroup.__path__[0]}/{package}"], f"asyncgroup.{package}."
        ):
            if not module.name.endswith((".__main__", ".generate")):
                importlib.import_module(module.name)
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
            _supervise(connection)
            return
        connection.close()
        _remove_ended(os.WNOHANG)
    _remove_ended(0)
    os._exit(0)


def _remove_ended(options: int) -> None:
    """Wait for supervisors, whose CPU time then counts as that of the tests; all of them, or with WNOHANG those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _supervise(connection: socket.socket) -> None:
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
        _become(files, *ast.literal_eval(request.decode()))
        return
    for file in files:
        os.close(file)

    def ended(*_: object) -> NoReturn:
        connection.sendall(os.waitpid(program, 0)[1].to_bytes(4, "big"))
        os._exit(0)

    signal.signal(signal.SIGCHLD, ended)
    connection.sendall(program.to_bytes(4, "big"))
    os.close(reading)
    os.close(writing)
    connection.recv(1)
    os.kill(program, signal.SIGKILL)
    os._exit(0)


def _become(files: list[int], directory: str, environment: dict[str, str], arguments: list[str]) -> None:
    """Take over the launcher's files, directory and environment, as a new interpreter with `-u` would."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = directory
    sys.argv = ["asyncgroup", *arguments]
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        text = io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), errors=errors, write_through=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


if __name__ == "__main__":
    serve(sys.argv[1])
    # not within a function that catches: what the program raises ends this process as it would end the interpreter
    runpy.run_module("asyncgroup", run_name="__main__", alter_sys=True)
