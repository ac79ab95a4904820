"""One run of an Apache Kafka cluster: create its directory, ports and processes, wait until they are ready, clean up."""

from __future__ import annotations

import base64
import shutil
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from asyncgroup.testing.apache_kafka.node import KafkaNode, KafkaStartError
from asyncgroup.testing.apache_kafka.properties import server_properties
from asyncgroup.testing.java_server.class_archive import ClassArchive
from asyncgroup.testing.java_server.ports import ReservedPorts
from asyncgroup.testing.java_server.properties_file import Value, property_text
from asyncgroup.testing.java_server.starting import time_limit
from asyncgroup.testing.java_server.watchdog import Watchdog

__all__ = ["ApacheCluster"]

_POLL_INTERVAL: Final = 0.05  # seconds between two checks of a process that is starting
_ARCHIVE_TIMEOUT: Final = 15.0  # seconds for a clean shutdown, in which Java writes the class archive
_LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    # several hundred lines of configuration at each start would fill the tail of the log
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
)


class ApacheCluster:
    """The nodes 1 … `count`: `start` formats and starts them, `close` kills them and removes their data.

    `java` is the command line up to the class path; `options` are further options of each node's Java; `overrides` are
    added to its properties; `limit` in seconds applies to each wait. `listeners` are additional ones: security protocol
    by listener name. `scram_users` are passwords by user name, for both SCRAM mechanisms. If `archive` can be created,
    node 1 writes it on shutdown, provided that it still runs when the cluster is closed.
    """

    def __init__(
        self,
        count: int,
        java: Sequence[str],
        options: Sequence[str],
        overrides: Mapping[str, Value],
        limit: float,
        listeners: Mapping[str, str] | None = None,
        scram_users: Mapping[str, str] | None = None,
        archive: ClassArchive | None = None,
        log_dirs: int = 1,
    ) -> None:
        self.cluster_id = _random_cluster_id()
        self.nodes: dict[int, KafkaNode] = {}
        self._java = [*java, *options]
        self._limit = limit
        self._archive = archive
        self._archived: KafkaNode | None = None
        """The node whose current process writes the class archive when it is shut down."""
        self._directory = Path(tempfile.mkdtemp(prefix="asyncgroup-kafka-"))
        self._watchdog = Watchdog(self._directory)
        protocols = dict(listeners or {})
        self._scram_users = dict(scram_users or {})
        self._ports = ReservedPorts((2 + len(protocols)) * count)
        numbers = iter(self._ports.numbers)
        ports = {node_id: (next(numbers), next(numbers)) for node_id in range(1, count + 1)}
        for node_id, (port, _) in ports.items():
            node = KafkaNode(node_id, port, self._directory / f"node-{node_id}", self._watchdog)
            node.listeners = {name: next(numbers) for name in protocols}
            further = {name: (protocols[name], number) for name, number in node.listeners.items()}
            properties = server_properties(node_id, ports, node.log_dirs(log_dirs), overrides, further)
            node.properties.write_text(property_text(properties), encoding="ascii")
            self.nodes[node_id] = node

    def start(self, abandoned: threading.Event) -> None:
        """Format and start all nodes, and wait until each knows all of them; stop waiting once `abandoned` is set.

        Raises KafkaStartError. `close` has to be called in any case.
        """
        self._format(abandoned)
        archiving = self.nodes[1] if self._archive is not None and self._archive.can_be_created else None
        for node in self.nodes.values():
            self._spawn(node, ClassArchive.dump_options(_archive_of(node)) if node is archiving else ())
        self._wait_ready(list(self.nodes.values()), abandoned)
        self._archived = archiving

    def start_node(self, node_id: int) -> None:
        """Start one node that is down, and wait until it and all running nodes know that it is back in the cluster."""
        node = self.nodes[node_id]
        if node is self._archived:
            self._archived = None
        self._spawn(node)
        running = [each for each in self.nodes.values() if each.pid is not None and not each.suspended]
        self._wait_ready(running, threading.Event())

    def close(self) -> None:
        """Kill the running nodes, remove the directory, release the ports."""
        self._keep_archive()
        for node in self.nodes.values():
            node.kill()
        shutil.rmtree(self._directory)
        self._watchdog.close()
        self._ports.close()

    def _keep_archive(self) -> None:
        node, self._archived = self._archived, None
        if node is None or self._archive is None or node.pid is None:
            return
        if node.stop(_ARCHIVE_TIMEOUT) and _archive_of(node).is_file():
            self._archive.install(_archive_of(node))

    def _format(self, abandoned: threading.Event) -> None:
        """Run Kafka's storage tool, which writes `meta.properties`, for all nodes at the same time."""
        for node in self.nodes.values():
            tool = ("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(node.properties))
            node.start([*self._java_for(node), *tool, *self._scram_options()])
        with time_limit(self._limit) as expired:
            for node in self.nodes.values():
                while node.pid is not None:
                    self._pause(node, "formatted", expired, abandoned)
                if not (node.data / "meta.properties").exists():
                    node.check()

    def _scram_options(self) -> list[str]:
        """Options of the storage tool for credentials that exist when the cluster starts (KIP-900)."""
        return [
            word
            for name, password in self._scram_users.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for word in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
        ]

    def _spawn(self, node: KafkaNode, options: Sequence[str] = ()) -> None:
        java = self._java_for(node)
        node.start([java[0], *options, *java[1:], "kafka.Kafka", str(node.properties)])

    def _java_for(self, node: KafkaNode) -> list[str]:
        return [*self._java, *node.java_options, *_LOGGING]

    def _wait_ready(self, nodes: list[KafkaNode], abandoned: threading.Event) -> None:
        """Wait until each of `nodes` knows all running nodes; a broker lists itself once the controller unfenced it."""
        running = {
            node.node_id for node in self.nodes.values() if node.pid is not None and not node.suspended
        }
        with time_limit(self._limit) as expired:
            for node in nodes:
                while not self._is_ready(node, running):
                    for other in nodes:
                        other.check()
                    self._pause(node, "ready", expired, abandoned)

    def _is_ready(self, node: KafkaNode, running: set[int]) -> bool:
        """Whether the node answers with our cluster id and all of `running`.

        The id is random, so a process with this id was started by us.
        """
        answer = node.probe()
        return answer is not None and answer.cluster_id == self.cluster_id and answer.node_ids >= running

    def _pause(
        self, node: KafkaNode, goal: str, expired: threading.Event, abandoned: threading.Event
    ) -> None:
        if abandoned.is_set():
            raise KafkaStartError("the start of Apache Kafka was abandoned")
        if expired.wait(_POLL_INTERVAL):
            raise KafkaStartError(
                f"Apache Kafka, node {node.node_id}, was not {goal} after {self._limit:g} s; "
                f"its log:\n{node.error_excerpt()}"
            )


def _archive_of(node: KafkaNode) -> Path:
    return node.scratch / "classes.jsa"


def _random_cluster_id() -> str:
    """Return 16 random bytes in URL-safe base64, as Kafka does; not with a leading dash, which would be an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        if not text.startswith("-"):
            return text
