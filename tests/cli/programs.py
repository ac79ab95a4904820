"""Commands of `asyncgroup` as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

LIMIT = 60.0
"""Seconds; a program that takes longer hangs."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "asyncgroup", *arguments]


def environment(*first: Path) -> dict[str, str]:
    """Ours, without what a terminal would change, and with the package at hand whatever the directory.

    Modules are looked for in `first` before all others.
    """
    path = os.pathsep.join(map(str, [*first, Path(__file__).parents[2]]))
    return {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def run(
    *arguments: str,
    stdin: str = "",
    limit: float = LIMIT,
    cwd: Path | None = None,
    path: Sequence[Path] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        env=environment(*path),
        cwd=cwd,
    )


class Running:
    """A command that runs by itself, and is ended with the block; it writes to files, so nobody has to read meanwhile."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._arguments, self._cwd = arguments, cwd

    def __enter__(self) -> Self:
        self._outputs = (tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+"))
        out, err = self._outputs
        self._process = subprocess.Popen(
            command(*self._arguments),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(),
            cwd=self._cwd,
        )
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(LIMIT)
        for output in self._outputs:
            output.close()

    def ended(self, limit: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        code = self._process.wait(limit)
        for output in self._outputs:
            output.seek(0)
        out, err = (output.read() for output in self._outputs)
        return subprocess.CompletedProcess(self._process.args, code, out, err)


class Program:
    """A command that runs; what it prints to standard output is read line by line."""

    def __init__(self, arguments: Sequence[str], path: Sequence[Path] = ()) -> None:
        self._process = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(*path),
        )

    def line(self) -> str:
        """The next line; "" when there are no more."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def lines(self, count: int) -> list[str]:
        return [self.line() for _ in range(count)]

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal; returns the exit code and the rest of both outputs."""
        self._process.send_signal(number)
        out, err = self._process.communicate(timeout=LIMIT)
        return self._process.returncode, out, err

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def started(*arguments: str, path: Sequence[Path] = ()) -> Iterator[Program]:
    """A command that runs during the block, and not longer."""
    program = Program(arguments, path)
    try:
        yield program
    finally:
        program.close()


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row, below those that the system hands out by itself."""
    for first in range(11_000 + os.getpid() % 1_000 * 10, 32_000, count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError("no free ports")


@contextmanager
def broker(*arguments: str, port: int = 0) -> Iterator[str]:
    """An embedded cluster in a process of its own; gives its bootstrap servers."""
    with started("broker", "--port", str(port), *arguments) as program:
        line = program.line()
        assert line.startswith("bootstrap: "), line
        yield line.removeprefix("bootstrap: ").strip()
