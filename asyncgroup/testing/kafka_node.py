"""One process of Apache Kafka: started, watched, signalled, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from asyncgroup.errors import AsyncGroupError, UsageError
from asyncgroup.testing.kafka_probe import ProbeResult, probe
from asyncgroup.testing.kafka_properties import HOST
from asyncgroup.testing.watchdog import Watchdog

__all__ = ["KafkaNode", "KafkaStartError", "PortInUse"]

_KILL_TIMEOUT: Final = (
    15.0  # seconds that a process may take to vanish after SIGKILL; milliseconds in practice
)


class KafkaStartError(AsyncGroupError):
    """A Kafka process ended early or was not ready in time; the message has the tail of its log."""


class PortInUse(KafkaStartError):
    """The process ended because another one listens on its port: worth a try with other ports."""


class KafkaNode:
    """One broker with its directory, its port and, while it runs, its process."""

    def __init__(self, node_id: int, port: int, directory: Path, watchdog: Watchdog) -> None:
        self.node_id = node_id
        self.port = port
        self.listeners: dict[str, int] = {}  # ports of further listeners, by name
        self.directory = directory
        self.suspended = False
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # where the present process began to log
        for place in (self.data, self.scratch):
            place.mkdir(parents=True)

    def __repr__(self) -> str:
        state = "down" if self.pid is None else f"pid {self.pid}"
        return (
            f"<KafkaNode {self.node_id} {HOST}:{self.port} {state}{' suspended' if self.suspended else ''}>"
        )

    @property
    def data(self) -> Path:
        """Kafka's `log.dirs`."""
        return self.directory / "data"

    @property
    def scratch(self) -> Path:
        """Java's temporary files: native libraries are unpacked there, and SIGKILL leaves them behind."""
        return self.directory / "tmp"

    @property
    def properties(self) -> Path:
        """The file `server.properties`."""
        return self.directory / "server.properties"

    @property
    def log(self) -> Path:
        """All that the process has said, over all its starts."""
        return self.directory / "kafka.log"

    @property
    def pid(self) -> int | None:
        """The process id, or None if it is not running (whoever ended it)."""
        return None if self._process is None or self._exit_code() is not None else self._process.pid

    def start(self, command: list[str]) -> None:
        """Starts the process; it is not ready yet."""
        if self.pid is not None:
            raise UsageError(f"node {self.node_id} is running already")
        self.suspended = False
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )
        self._watchdog.guard(self._process.pid)

    def probe(self) -> ProbeResult | None:
        """What the broker says about its cluster, or None if it says nothing yet.

        Raises KafkaStartError if the process has ended, so an answer is never that of another process in its
        place.
        """
        self.check()
        try:
            return probe(HOST, self.port)
        except (OSError, ValueError):
            return None

    def check(self) -> None:
        """Raises KafkaStartError if the process has ended."""
        if (code := self._exit_code()) is None:
            return
        error = PortInUse if "Address already in use" in self._current_log() else KafkaStartError
        raise error(
            f"Apache Kafka, node {self.node_id}, ended with exit code {code}:\n{self.error_excerpt()}"
        )

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log; empty if there is none."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 400 * lines))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def error_excerpt(self, lines: int = 25) -> str:
        """What the process logged from its first error on, else its last lines.

        A broker that fails still shuts down in order, and says so on fifty lines.
        """
        said = self._current_log().splitlines()
        first = next(
            (number for number, line in enumerate(said) if " ERROR " in line), max(0, len(said) - lines)
        )
        return "\n".join(said[first : first + lines])

    def _current_log(self) -> str:
        """The log of the present process."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def suspend(self) -> None:
        """SIGSTOP: the process keeps its connections and answers nothing. UsageError if it is not running."""
        self._send(signal.SIGSTOP)
        self.suspended = True

    def resume(self) -> None:
        """SIGCONT. UsageError if it is not running."""
        self._send(signal.SIGCONT)
        self.suspended = False

    def kill(self) -> None:
        """SIGKILL, and waits for the end; does nothing if the process is not running."""
        if self._process is not None and self._exit_code() is None:
            self._process.kill()
            self._process.wait(_KILL_TIMEOUT)
            self._exit_code()
        self.suspended = False

    def stop(self, limit: float) -> bool:
        """SIGTERM, on which Kafka hands over its leaders and ends in order; after `limit` seconds SIGKILL.

        Returns whether it ended in order.
        """
        in_order = False
        if self._process is not None and self._exit_code() is None:
            if self.suspended:
                self.resume()
            self._process.terminate()
            # With most controllers down Kafka would try for minutes.
            with contextlib.suppress(subprocess.TimeoutExpired):
                in_order = self._process.wait(limit) != -signal.SIGKILL
        self.kill()
        return in_order

    def _send(self, number: signal.Signals) -> None:
        if self._process is None or self._exit_code() is not None:
            raise UsageError(f"node {self.node_id} is not running")
        self._process.send_signal(number)

    def _exit_code(self) -> int | None:
        """The exit code, None while the process runs or if there is none. An ended one is guarded no more."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._watchdog.release(self._process.pid)
        return code
