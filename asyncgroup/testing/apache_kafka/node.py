"""One node of Apache Kafka as a child process, and its readiness."""

from __future__ import annotations

from pathlib import Path

from asyncgroup.errors import AsyncGroupError
from asyncgroup.testing.apache_kafka.probe import ProbeResult, probe
from asyncgroup.testing.java_server.ports import HOST
from asyncgroup.testing.java_server.process import ServerProcess
from asyncgroup.testing.java_server.watchdog import Watchdog

__all__ = ["KafkaNode", "KafkaStartError", "PortInUse"]


class KafkaStartError(AsyncGroupError):
    """A Kafka process ended early or was not ready in time; the message contains the errors of its log."""


class PortInUse(KafkaStartError):
    """The process ended because its port is in use; with another port the start may succeed."""


class KafkaNode(ServerProcess):
    """One node: its directory and port, which outlive restarts, and its current process."""

    start_error = KafkaStartError
    port_in_use = PortInUse

    def __init__(self, node_id: int, port: int, directory: Path, watchdog: Watchdog) -> None:
        super().__init__(f"Apache Kafka, node {node_id},", f"node {node_id}", directory, watchdog)
        self.node_id = node_id
        self.port = port
        self.listeners: dict[str, int] = {}  # ports of additional listeners, by name

    def __repr__(self) -> str:
        return f"<KafkaNode {self.node_id} {HOST}:{self.port} {self.state}>"

    def log_dirs(self, count: int) -> list[Path]:
        """Return this many directories for `log.dirs`: `data`, and further ones beside it."""
        return [self.data, *(self.directory / f"data-{number}" for number in range(2, count + 1))]

    @property
    def properties(self) -> Path:
        """The path of `server.properties`."""
        return self.directory / "server.properties"

    def probe(self) -> ProbeResult | None:
        """Return the cluster metadata from this broker, or None if it does not answer yet.

        Raises KafkaStartError if the process has ended; otherwise another process on the same port could answer for it.
        """
        self.check()
        try:
            return probe(HOST, self.port)
        except (OSError, ValueError):
            return None
