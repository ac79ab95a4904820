"""One run of a standalone: create its directory, ports and process, wait until it is ready, clean up."""

from __future__ import annotations

import http.client
import secrets
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.testing.apache_pulsar.admin import PulsarAdminError, call
from asyncgroup.testing.apache_pulsar.credentials import SECRET_KEY, create_token, split_certificate
from asyncgroup.testing.apache_pulsar.properties import (
    StandaloneOptions,
    StandalonePorts,
    standalone_properties,
)
from asyncgroup.testing.java_server.class_archive import ClassArchive
from asyncgroup.testing.java_server.ports import HOST, ReservedPorts
from asyncgroup.testing.java_server.process import ServerProcess
from asyncgroup.testing.java_server.properties_file import property_text
from asyncgroup.testing.java_server.starting import time_limit
from asyncgroup.testing.java_server.watchdog import Watchdog

__all__ = ["PulsarPortInUse", "PulsarStandalone", "PulsarStartError", "StandaloneRun"]

_POLL_INTERVAL: Final = 0.1  # seconds between two checks of a process that is starting
_PROBE_LIMIT: Final = 5.0  # seconds; a busy broker answers late
_ARCHIVE_TIMEOUT: Final = 60.0  # seconds for a clean shutdown, in which Java writes the class archive
_FAILED: Final = "Failed to start pulsar service"
_PACKAGES: Final = ("java.lang", "java.nio", "sun.net", "jdk.internal.misc", "jdk.internal.platform")
_OPTIONS: Final = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES),
    "-Dio.netty.tryReflectionSetAccessible=true",
    # of the two loggers among the jars the one that needs no file
    "-Dslf4j.provider=org.slf4j.simple.SimpleServiceProvider",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_MAIN: Final = (
    "org.apache.pulsar.PulsarStandaloneStarter",
    "--no-functions-worker",
    "--no-stream-storage",
    "--num-bookies",
    "1",
)


class PulsarStartError(AsyncGroupError):
    """A Pulsar process ended early or was not ready in time; the message contains the errors of its log."""


class PulsarPortInUse(PulsarStartError):
    """The process ended because a port is in use; with other ports the start may succeed."""


class PulsarStandalone(ServerProcess):
    """The process of a standalone, which outlives restarts with its directory and ports."""

    start_error = PulsarStartError
    port_in_use = PulsarPortInUse
    # a bookie that starts for the first time logs an error of its journal
    error_line = r" ERROR (?!org\.apache\.bookkeeper\.bookie\.Journal )|^Exception in thread"

    def __init__(self, directory: Path, watchdog: Watchdog) -> None:
        super().__init__("Apache Pulsar", "this ApachePulsar", directory, watchdog)

    def check(self) -> None:
        """Raise PulsarStartError if the process has ended, or has failed to start: then it may hang."""
        log = self.current_log()
        if self.pid is not None and _FAILED in log:
            self.kill()
            error = PulsarPortInUse if "Address already in use" in log else PulsarStartError
            raise error(f"Apache Pulsar failed to start:\n{self.error_excerpt()}")
        super().check()


class StandaloneRun:
    """A standalone's directory, ports and process, from its first `start` until `close`.

    `java` is the command line up to the class path with all options but those of the directory. `limit` in seconds
    applies to each start. If `archive` can be created, the first process writes it when it is shut down by `close`.
    """

    def __init__(
        self,
        java: Sequence[str],
        options: StandaloneOptions,
        limit: float,
        archive: ClassArchive | None = None,
    ) -> None:
        self._java = list(java)
        self._limit = limit
        self._archive = archive
        self._archives = False
        """Whether the current process writes the class archive when it is shut down."""
        self._directory = Path(tempfile.mkdtemp(prefix="asyncgroup-pulsar-"))
        self._watchdog = Watchdog(self._directory)
        self.process = PulsarStandalone(self._directory / "standalone", self._watchdog)
        self.secret_key = self.process.directory / SECRET_KEY
        """The file with the key of tokens; it exists in any case."""
        self.secret_key.write_bytes(secrets.token_bytes(32))
        if options.certificate is not None:
            split_certificate(options.certificate, self.process.directory)
        self._reserved = ReservedPorts(len(StandalonePorts._fields))
        self.ports = StandalonePorts(*self._reserved.numbers)
        self.admin_token = self.token("admin") if options.token_authentication else None
        """The token of the superuser, if tokens are required."""
        properties = standalone_properties(
            self.ports, options, self.process.directory, self.admin_token or ""
        )
        self._properties = self.process.directory / "standalone.conf"
        self._properties.write_text(property_text(properties), encoding="ascii")

    @property
    def admin_url(self) -> str:
        """The URL of the admin API."""
        return f"http://{HOST}:{self.ports.web}"

    def token(self, role: str, lifetime: float | None = None) -> str:
        """Return a token for a role."""
        return create_token(self.secret_key.read_bytes(), role, lifetime)

    def start(self, abandoned: threading.Event) -> None:
        """Start the process and wait until it is ready; stop waiting once `abandoned` is set.

        Raises PulsarStartError; the process is not running then, and its data is kept until `close`.
        """
        first = not self.process.log.exists()
        self._archives = first and self._archive is not None and self._archive.can_be_created
        dump = ClassArchive.dump_options(self._made_archive) if self._archives else []
        self.process.start(self._command(dump))
        try:
            with time_limit(self._limit) as expired:
                while not self._is_ready():
                    self._pause(expired, abandoned)
        except BaseException:
            self._archives = False
            self.process.kill()
            raise

    def close(self) -> None:
        """End the process, remove the directory, release the ports."""
        if self._archives and self._archive is not None and self.process.pid is not None:
            self._archives = False
            if self.process.stop(_ARCHIVE_TIMEOUT) and self._made_archive.is_file():
                self._archive.install(self._made_archive)
        self.process.kill()
        shutil.rmtree(self._directory)
        self._watchdog.close()
        self._reserved.close()

    @property
    def _made_archive(self) -> Path:
        return self.process.scratch / "classes.jsa"

    def _command(self, dump: Sequence[str]) -> list[str]:
        data = self.process.data
        paths = {
            "--config": self._properties,
            "--metadata-dir": data / "metadata",
            "--bookkeeper-dir": data / "bookkeeper",
            "--bookkeeper-port": self.ports.bookie,
        }
        java = [self._java[0], *dump, *self._java[1:], *_OPTIONS, *self.process.java_options]
        return [*java, *_MAIN, *(str(word) for pair in paths.items() for word in pair)]

    def _is_ready(self) -> bool:
        """Whether the broker is ready and its namespaces exist: it creates them after it has begun to answer.

        After a restart they exist at once, and the broker is ready later. The process is checked in any case: another
        one on the port could answer for it.
        """
        try:
            return self._ask("brokers/ready") == "ok" and all(
                f"{tenant}/{namespace}" in self._ask(f"namespaces/{tenant}")
                for tenant, namespace in (("public", "default"), ("pulsar", "system"))
            )
        except (OSError, http.client.HTTPException, PulsarAdminError):
            return False
        finally:
            self.process.check()

    def _ask(self, path: str) -> Any:
        return call(self.admin_url, "GET", f"/admin/v2/{path}", token=self.admin_token, limit=_PROBE_LIMIT)

    def _pause(self, expired: threading.Event, abandoned: threading.Event) -> None:
        if abandoned.is_set():
            raise PulsarStartError("the start of Apache Pulsar was abandoned")
        if expired.wait(_POLL_INTERVAL):
            raise PulsarStartError(
                f"Apache Pulsar was not ready after {self._limit:g} s; its log:\n{self.process.error_excerpt()}"
            )
