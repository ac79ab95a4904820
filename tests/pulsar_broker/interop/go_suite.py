"""The tests of Pulsar's Go client, compiled from its module in Go's cache, and run against a broker at their fixed addresses."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from asyncgroup.java import user_cache

__all__ = [
    "ADMIN_PORT",
    "ADMIN_TLS_PORT",
    "BUILD_LIMIT",
    "PORT",
    "TLS_PORT",
    "GoSuite",
    "build_suite",
    "fixed_ports",
    "written_tests",
]

MODULE: Final = "github.com/apache/pulsar-client-go@v0.19.0"
PORT: Final = 6650
TLS_PORT: Final = 6651
ADMIN_PORT: Final = 8080
ADMIN_TLS_PORT: Final = 8443
"""Constants of the suite."""
BUILD_LIMIT: Final = 600.0
"""Seconds for the first build, which may download modules; later runs use the cached program."""

_TEST: Final = re.compile(r"(?m)^func (Test\w+)\(")


class GoSuite(NamedTuple):
    """The compiled tests, and the directory of their sources, where they find their certificates."""

    program: Path
    directory: Path

    async def run(self, name: str, limit: float) -> str:
        """Run a test; return its output if it fails or is skipped, else an empty text."""
        process = await asyncio.create_subprocess_exec(
            self.program,
            "-test.v",
            f"-test.run=^{name}$",
            f"-test.timeout={limit:g}s",
            cwd=self.directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(limit + 10):
                output = (await process.communicate())[0].decode(errors="replace")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        passed = process.returncode == 0 and f"--- PASS: {name} " in output and "--- SKIP" not in output
        return "" if passed else output


def build_suite() -> GoSuite:
    """Return the compiled tests. Skip the test without Go or the modules."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    found = _run([go, "mod", "download", "-json", MODULE])
    source = Path(json.loads(found)["Dir"])
    target = user_cache() / "interop" / f"{MODULE.rpartition('/')[2]}.test"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f"{target.name}.{os.getpid()}")
        _run([go, "-C", str(source), "test", "-c", "-o", str(made), "./pulsar"])
        made.replace(target)
    return GoSuite(target, source / "pulsar")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"building the tests of {MODULE} took longer than {BUILD_LIMIT:g} s")
    if done.returncode:
        pytest.skip(f"{MODULE} cannot be built: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout


def written_tests(directory: Path) -> dict[str, list[str]]:
    """Return the names of the tests in the sources, by file."""
    return {path.name: _TEST.findall(path.read_text()) for path in sorted(directory.glob("*_test.go"))}


@contextmanager
def fixed_ports() -> Iterator[None]:
    """Have the ports of the suite, which one run at a time may use. Skip the test while another program has them."""
    path = user_cache() / "interop" / "pulsar-ports.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for port in (PORT, TLS_PORT, ADMIN_PORT, ADMIN_TLS_PORT):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    pytest.skip(f"port {port}, a constant of the suite, is in use: {error}")
        yield
