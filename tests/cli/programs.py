"""Run the commands of `asyncgroup` as processes.

They are forked from a server that has imported the package, except with directories `first` on the module search path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.forked.server import forked, forking

LIMIT = 60.0
"""Seconds after which a process is considered to hang."""


def command(*arguments: str) -> list[str]:
    return forked("asyncgroup", *arguments)


def environment(*first: Path) -> dict[str, str]:
    """Return our environment, without colors, and with the package and the directories `first` on PYTHONPATH."""
    path = os.pathsep.join(map(str, [*first, Path(__file__).parents[2]]))
    chosen = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    return chosen if first else forking(chosen, "commands")


def run(
    *arguments: str,
    stdin: str = "",
    limit: float = LIMIT,
    cwd: Path | None = None,
    path: Sequence[Path] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for its end."""
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


class BackgroundCommand:
    """A command that runs in the background and is terminated at the end of the block.

    It writes to files, so that it does not block on a full pipe while nothing reads its output.
    """

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._arguments = arguments
        self._cwd = cwd

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
        """Wait until it has ended, at most `limit` seconds."""
        code = self._process.wait(limit)
        for output in self._outputs:
            output.seek(0)
        out, err = (output.read() for output in self._outputs)
        return subprocess.CompletedProcess(self._process.args, code, out, err)


class StartedCommand:
    """A running command whose standard output can be read line by line."""

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
        """Return the next line, or "" after the last one."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def lines(self, count: int) -> list[str]:
        return [self.line() for _ in range(count)]

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal, and return the exit code and the rest of both outputs."""
        self._process.send_signal(number)
        out, err = self._process.communicate(timeout=LIMIT)
        return self._process.returncode, out, err

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_for_error(self, begin: str) -> None:
        """Wait for a line on standard error that begins with this text."""
        assert self._process.stderr is not None
        while line := self._process.stderr.readline():
            if line.startswith(begin):
                return
        raise AssertionError(f"no line begins with {begin!r}")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def started(*arguments: str, path: Sequence[Path] = ()) -> Iterator[StartedCommand]:
    """Run a command during the block, and kill it at the end."""
    program = StartedCommand(arguments, path)
    try:
        yield program
    finally:
        program.close()


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports, below the system's range of ephemeral ports."""
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
    """Run `asyncgroup broker` in a separate process, and yield its bootstrap servers."""
    with started("broker", "--port", str(port), *arguments) as program:
        line = program.line()
        assert line.startswith("bootstrap: "), line
        yield line.removeprefix("bootstrap: ").strip()
