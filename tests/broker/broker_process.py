"""`asyncgroup broker --data-dir` as a process that can be killed with SIGKILL and restarted on the same port."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncgroup.testing.java_server.ports import ReservedPorts
from tests.broker.batches import batch

__all__ = ["PARTITIONS", "TOPIC", "BrokerProcess", "broker_process"]

TOPIC = "orders"
PARTITIONS = 3
SETTINGS = f"{TOPIC}:{PARTITIONS}:internal.segment.bytes=30000"


class BrokerProcess:
    """A broker process with its data directory and port."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        arguments = ["--port", str(port), "--data-dir", str(directory), "--topic", SETTINGS]
        self._command = [sys.executable, "-m", "asyncgroup", "broker", *arguments]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the process ended before it was ready"

    def kill(self) -> None:
        self._process.kill()
        self._end(-signal.SIGKILL)

    def kill_and_start(self, rng: random.Random) -> None:
        """Kill and restart the process; in between, append torn batches and records to some files."""
        self.kill()
        self._tear(rng)
        self.start()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._end(128 + signal.SIGTERM)

    def _end(self, code: int) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert self._process.wait(60) == code

    def _tear(self, rng: random.Random) -> None:
        for number in range(PARTITIONS):
            found = list(self.directory.glob(f"topics/{TOPIC}.*/{number}/*.log"))
            if found and rng.random() < 0.7:  # the broker may have been killed before its first append
                with max(found).open("ab") as file:
                    data = batch(rng.randbytes(200))
                    file.write(data[: rng.randrange(1, len(data))])
        if rng.random() < 0.7:
            with max(self.directory.glob("metadata/*.metadata")).open("ab") as file:
                file.write(b'\0\0\0\x40half{"key":["partition'[: rng.randrange(1, 30)])


@contextmanager
def broker_process(directory: Path) -> Iterator[BrokerProcess]:
    """Run a broker on a free port; it is stopped on exit."""
    ports = ReservedPorts(1)
    try:
        found = BrokerProcess(directory, ports.numbers[0])
        try:
            yield found
        finally:
            found.stop()
    finally:
        ports.close()
