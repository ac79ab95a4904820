"""`ApachePulsar`: the public object of a real Apache Pulsar."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from asyncgroup.errors import UsageError
from asyncgroup.java import require_java
from asyncgroup.testing.apache_pulsar.admin import PulsarAdmin
from asyncgroup.testing.apache_pulsar.jars import PULSAR_VERSION, pulsar_jars
from asyncgroup.testing.apache_pulsar.properties import StandaloneOptions, check_properties
from asyncgroup.testing.apache_pulsar.standalone import PulsarPortInUse, StandaloneRun
from asyncgroup.testing.java_server.class_archive import ClassArchive
from asyncgroup.testing.java_server.options import QUICK_START
from asyncgroup.testing.java_server.ports import HOST
from asyncgroup.testing.java_server.properties_file import Value
from asyncgroup.testing.java_server.starting import refuse_frozen, start_in_thread

__all__ = ["ApachePulsar"]

_ATTEMPTS: Final = 5  # first starts, each with new ports, when a port is in use


class ApachePulsar:
    """A standalone: a broker of the cluster `standalone` with the namespace `public/default`.

    `properties` are added to its `standalone.conf` and override the settings for quick tests. With `token_authentication`
    clients need a `token`, and all roles but `admin` a permission (`admin.grant`). `certificate` is a PEM file with a
    private key and its certificate, for a TLS port beside the plain one. With `broker_entry_metadata` messages have a
    broker timestamp and an index. `heap` and `direct_memory` limit Java's memory; `java_options` precede them.
    `start_timeout` in seconds limits each start.

    A context manager, plain or async; or call `start()` and at the end `close()`. `kill()` and `stop()` end the process,
    and a further `start()` continues with its data, on the same ports. All methods but those of `admin` block, some for
    seconds: on an event loop use `await asyncio.to_thread(pulsar.restart)`. The process is killed when the one that
    started it ends, even by SIGKILL.
    """

    def __init__(
        self,
        *,
        version: str = PULSAR_VERSION,
        properties: Mapping[str, Value] | None = None,
        token_authentication: bool = False,
        certificate: str | Path | None = None,
        broker_entry_metadata: bool = False,
        heap: str = "512m",
        direct_memory: str = "512m",
        java_options: Sequence[str] = QUICK_START,
        start_timeout: float = 120.0,
    ) -> None:
        self.version = version
        overrides = dict(properties or {})
        check_properties(overrides)
        self._options = StandaloneOptions(
            overrides=overrides,
            token_authentication=token_authentication,
            certificate=Path(certificate).absolute() if certificate is not None else None,
            broker_entry_metadata=broker_entry_metadata,
        )
        self._java_options = (*java_options, f"-Xmx{heap}", f"-XX:MaxDirectMemorySize={direct_memory}")
        self._start_timeout = start_timeout  # seconds
        self._run: StandaloneRun | None = None

    def __repr__(self) -> str:
        if self._run is None:
            return f"<ApachePulsar {self.version} not started>"
        return f"<ApachePulsar {self.version} {self.service_url} {self._run.process.state}>"

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`, running or not."""
        return f"pulsar://{HOST}:{self._started().ports.broker}"

    @property
    def service_url_tls(self) -> str:
        """`pulsar+ssl://host:port`. UsageError without a `certificate`."""
        if self._options.certificate is None:
            raise UsageError("this ApachePulsar has no TLS port: pass a certificate")
        return f"pulsar+ssl://{HOST}:{self._started().ports.broker_tls}"

    @property
    def admin_url(self) -> str:
        """`http://host:port` of the admin API."""
        return self._started().admin_url

    @property
    def admin(self) -> PulsarAdmin:
        """An asyncio client of the admin API, as superuser."""
        run = self._started()
        return PulsarAdmin(run.admin_url, run.admin_token)

    @property
    def secret_key(self) -> Path:
        """The file with the secret key of tokens."""
        return self._started().secret_key

    def token(self, role: str, lifetime: float | None = None) -> str:
        """Return a token for a role; without a `lifetime` in seconds, which may be negative, it does not expire."""
        return self._started().token(role, lifetime)

    @property
    def pid(self) -> int | None:
        """The process id, None while it is not running."""
        return self._started().process.pid

    @property
    def data(self) -> Path:
        """The directory of the metadata and of the bookie's journal and ledgers."""
        return self._started().process.data

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return self._started().process.log_tail(lines)

    def start(self) -> None:
        """Start the process, and wait until its namespaces exist; after `kill` or `stop` it continues with its data.

        Raises JavaNotFound, PulsarJarsUnavailable, or PulsarStartError with the errors of the log. UsageError if it is
        running already, and in a frozen program.
        """
        self._start(threading.Event())

    def stop(self, limit: float = 30.0) -> None:
        """Shut the process down cleanly by SIGTERM; after `limit` seconds SIGKILL. Its data stays on disk."""
        self._started().process.stop(limit)

    def kill(self) -> None:
        """End the process by SIGKILL; its data stays on disk."""
        self._started().process.kill()

    def restart(self) -> None:
        """Shut the process down if it is running, and start it again."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        """SIGSTOP: it keeps its connections but does not answer, like a machine that hangs."""
        self._started().process.suspend()

    def resume(self) -> None:
        """SIGCONT: it continues where it was stopped; its timeouts are then due."""
        self._started().process.resume()

    def close(self) -> None:
        """End the process and remove its data. Safe to call twice.

        If there is no class archive yet, the first process is shut down cleanly within 60 s: it writes an archive of
        Pulsar's classes to the user's cache, with which later ones start twice as fast
        (`asyncgroup.testing.java_server.class_archive`).
        """
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await start_in_thread(self._start, self.close)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def _start(self, abandoned: threading.Event) -> None:
        if self._run is not None:
            self._run.start(abandoned)
            return
        refuse_frozen("Apache Pulsar")
        java, jars = require_java("run Apache Pulsar"), pulsar_jars(self.version)
        archive = ClassArchive(java, jars, "pulsar")
        command = [str(java.executable), *archive.options, *self._java_options, "-cp", f"{jars}/*"]
        for attempt in range(1, _ATTEMPTS + 1):
            self._run = StandaloneRun(command, self._options, self._start_timeout, archive)
            try:
                self._run.start(abandoned)
                return
            except BaseException as error:
                self.close()
                if not isinstance(error, PulsarPortInUse) or attempt == _ATTEMPTS:
                    raise

    def _started(self) -> StandaloneRun:
        if self._run is None:
            raise UsageError(
                "this ApachePulsar is not running: call start(), or enter it as a context manager"
            )
        return self._run
