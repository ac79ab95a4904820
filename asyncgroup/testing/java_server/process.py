"""A server as a child process: start, suspend, kill and stop it, and read its log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import ClassVar, Final

from asyncgroup.errors import AsyncGroupError, UsageError
from asyncgroup.testing.java_server.watchdog import Watchdog

__all__ = ["ServerProcess"]

_KILL_TIMEOUT: Final = 15.0  # seconds to wait for the exit after SIGKILL, which takes milliseconds


class ServerProcess:
    """A server: its directory, which outlives restarts, and its current process.

    `name` is that of the server in error messages, `short_name` in those about its use.
    """

    start_error: ClassVar[type[AsyncGroupError]]
    """Raised if the process has ended."""

    port_in_use: ClassVar[type[AsyncGroupError]]
    """Raised if it has ended because its port is in use."""

    error_line: ClassVar[str] = " ERROR "
    """A regular expression for the lines of the log at which an excerpt begins."""

    def __init__(self, name: str, short_name: str, directory: Path, watchdog: Watchdog) -> None:
        self.directory = directory
        self.suspended = False  # between SIGSTOP and SIGCONT
        self._name = name
        self._short_name = short_name
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # size of the log in bytes when the current process was started
        for path in (self.data, self.scratch):
            path.mkdir(parents=True)

    @property
    def data(self) -> Path:
        """The directory of the server's data."""
        return self.directory / "data"

    @property
    def scratch(self) -> Path:
        """Java's directory for temporary files, such as unpacked native libraries, which remain after SIGKILL."""
        return self.directory / "tmp"

    @property
    def log(self) -> Path:
        """The path of the log: the output of all processes of this server."""
        return self.directory / "server.log"

    @property
    def pid(self) -> int | None:
        """The process id, or None if the process is not running."""
        return None if self._process is None or self._exit_code() is not None else self._process.pid

    @property
    def state(self) -> str:
        """The process id and whether it is suspended, as text."""
        if self.pid is None:
            return "down"
        return f"pid {self.pid}{' suspended' if self.suspended else ''}"

    @property
    def java_options(self) -> list[str]:
        """Options of Java for a process in this directory."""
        # without -UsePerfData a killed Java leaves a file in the system's temporary directory
        return [f"-Djava.io.tmpdir={self.scratch}", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"]

    def start(self, command: list[str]) -> None:
        """Start the process, without waiting until it is ready."""
        if self.pid is not None:
            raise UsageError(f"{self._short_name} is running already")
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

    def check(self) -> None:
        """Raise `start_error` if the process has ended."""
        if (code := self._exit_code()) is None:
            return
        error = self.port_in_use if "Address already in use" in self.current_log() else self.start_error
        raise error(f"{self._name} ended with exit code {code}:\n{self.error_excerpt()}")

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log; empty if there is no log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 400 * lines))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def error_excerpt(self, lines: int = 25) -> str:
        """Return the log of the current process from its first error on, or its last lines if there is none.

        The last lines seldom show the cause: a server that fails logs about fifty lines of its shutdown.
        """
        log = self.current_log().splitlines()
        first = next(
            (number for number, line in enumerate(log) if re.search(self.error_line, line)),
            max(0, len(log) - lines),
        )
        return "\n".join(log[first : first + lines])

    def current_log(self) -> str:
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
        """Send SIGTERM for a controlled shutdown; SIGKILL after `limit` s.

        Return whether the process ended without SIGKILL.
        """
        clean = False
        if self._process is not None and self._exit_code() is None:
            if self.suspended:
                self.resume()
            self._process.terminate()
            # a controlled shutdown may be retried for minutes, such as that of Kafka without a controller quorum
            with contextlib.suppress(subprocess.TimeoutExpired):
                clean = self._process.wait(limit) != -signal.SIGKILL
        self.kill()
        return clean

    def _send(self, number: signal.Signals) -> None:
        if self._process is None or self._exit_code() is not None:
            raise UsageError(f"{self._short_name} is not running")
        self._process.send_signal(number)

    def _exit_code(self) -> int | None:
        """Return the exit code, None if there is none yet; release an ended process from the watchdog."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._watchdog.release(self._process.pid)
        return code
