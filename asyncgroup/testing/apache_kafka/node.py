"""One node of Apache Kafka as a child process: start, probe, suspend, kill and stop it, and read its log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from asyncgroup.errors import AsyncGroupError, UsageError
from asyncgroup.testing.apache_kafka.probe import ProbeResult, probe
from asyncgroup.testing.apache_kafka.properties import HOST
from asyncgroup.testing.apache_kafka.watchdog import Watchdog

__all__ = ["KafkaNode", "KafkaStartError", "PortInUse"]

_KILL_TIMEOUT: Final = 15.0  # seconds to wait for the exit after SIGKILL, which takes milliseconds


class KafkaStartError(AsyncGroupError):
    """A Kafka process ended early or was not ready in time; the message contains the errors of its log."""


class PortInUse(KafkaStartError):
    """The process ended because its port is in use; with another port the start may succeed."""


class KafkaNode:
    """One node: its directory and port, which outlive restarts, and its current process."""

    def __init__(self, node_id: int, port: int, directory: Path, watchdog: Watchdog) -> None:
        self.node_id = node_id
        self.port = port
        self.listeners: dict[str, int] = {}  # ports of additional listeners, by name
        self.directory = directory
        self.suspended = False  # between SIGSTOP and SIGCONT
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # size of the log in bytes when the current process was started
        for path in (self.data, self.scratch):
            path.mkdir(parents=True)

    def __repr__(self) -> str:
        state = "down" if self.pid is None else f"pid {self.pid}"
        return (
            f"<KafkaNode {self.node_id} {HOST}:{self.port} {state}{' suspended' if self.suspended else ''}>"
        )

    @property
    def data(self) -> Path:
        """The directory of Kafka's logs, `log.dirs`."""
        return self.directory / "data"

    def log_dirs(self, count: int) -> list[Path]:
        """Return this many directories for `log.dirs`: `data`, and further ones beside it."""
        return [self.data, *(self.directory / f"data-{number}" for number in range(2, count + 1))]

    @property
    def scratch(self) -> Path:
        """Java's directory for temporary files, such as unpacked native libraries, which remain after SIGKILL."""
        return self.directory / "tmp"

    @property
    def properties(self) -> Path:
        """The path of `server.properties`."""
        return self.directory / "server.properties"

    @property
    def log(self) -> Path:
        """The path of the log: the output of all processes of this node."""
        return self.directory / "kafka.log"

    @property
    def pid(self) -> int | None:
        """The process id, or None if the process is not running."""
        return None if self._process is None or self._exit_code() is not None else self._process.pid

    def start(self, command: list[str]) -> None:
        """Start the process, without waiting until it is ready."""
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
        """Return the cluster metadata from this broker, or None if it does not answer yet.

        Raises KafkaStartError if the process has ended; otherwise another process on the same port could answer for it.
        """
        self.check()
        try:
            return probe(HOST, self.port)
        except (OSError, ValueError):
            return None

    def check(self) -> None:
        """Raise KafkaStartError if the process has ended."""
        if (code := self._exit_code()) is None:
            return
        error = PortInUse if "Address already in use" in self._current_log() else KafkaStartError
        raise error(
            f"Apache Kafka, node {self.node_id}, ended with exit code {code}:\n{self.error_excerpt()}"
        )

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log; empty if there is no log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 400 * lines))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def error_excerpt(self, lines: int = 25) -> str:
        """Return the log of the current process from its first error on, or its last lines if there is none.

        The last lines seldom show the cause: a broker that fails logs about fifty lines of its shutdown.
        """
        log = self._current_log().splitlines()
        first = next(
            (number for number, line in enumerate(log) if " ERROR " in line), max(0, len(log) - lines)
        )
        return "\n".join(log[first : first + lines])

    def _current_log(self) -> str:
        """Return the log of the current process."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def suspend(self) -> None:
        """Send SIGSTOP: the process keeps its connections but does not answer. UsageError if it is not running."""
        self._send(signal.SIGSTOP)
        if self._process is not None and hasattr(os, "waitid"):  # until then its threads may still answer
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.suspended = True

    def resume(self) -> None:
        """Send SIGCONT: the process continues. UsageError if it is not running."""
        self._send(signal.SIGCONT)
        self.suspended = False

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit. Do nothing if the process is not running."""
        if self._process is not None and self._exit_code() is None:
            self._process.kill()
            self._process.wait(_KILL_TIMEOUT)
            self._exit_code()
        self.suspended = False

    def stop(self, limit: float) -> bool:
        """Send SIGTERM for a controlled shutdown, in which leadership moves to other brokers; SIGKILL after `limit` s.

        Return whether the process ended without SIGKILL.
        """
        clean = False
        if self._process is not None and self._exit_code() is None:
            if self.suspended:
                self.resume()
            self._process.terminate()
            # without a controller quorum the controlled shutdown would be retried for minutes
            with contextlib.suppress(subprocess.TimeoutExpired):
                clean = self._process.wait(limit) != -signal.SIGKILL
        self.kill()
        return clean

    def _send(self, number: signal.Signals) -> None:
        if self._process is None or self._exit_code() is not None:
            raise UsageError(f"node {self.node_id} is not running")
        self._process.send_signal(number)

    def _exit_code(self) -> int | None:
        """Return the exit code, None if there is none yet; release an ended process from the watchdog."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._watchdog.release(self._process.pid)
        return code
