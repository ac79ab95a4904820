"""`ApacheKafka`: the public object of a real Apache Kafka."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from asyncgroup.errors import AsyncGroupError, ConfigError, UsageError
from asyncgroup.java import require_java
from asyncgroup.testing.apache_kafka.cluster import ApacheCluster
from asyncgroup.testing.apache_kafka.jars import KAFKA_VERSION, kafka_jars
from asyncgroup.testing.apache_kafka.node import KafkaNode, PortInUse
from asyncgroup.testing.apache_kafka.properties import check_listeners, check_overrides
from asyncgroup.testing.java_server.class_archive import ClassArchive
from asyncgroup.testing.java_server.options import QUICK_START
from asyncgroup.testing.java_server.ports import HOST
from asyncgroup.testing.java_server.properties_file import Value
from asyncgroup.testing.java_server.starting import refuse_frozen, start_in_thread

__all__ = ["ApacheKafka", "KafkaToolError"]

_ATTEMPTS: Final = 5  # starts, each with new ports, when a port is in use


class KafkaToolError(AsyncGroupError):
    """One of Kafka's command-line tools failed or took too long; the message contains its output."""


class ApacheKafka:
    """A cluster of `nodes` processes with the ids 1, 2, 3, …

    `properties` are added to each `server.properties` and override the settings for quick tests. `listeners` are
    additional listeners of each node, security protocol by name ({"SECURE": "SASL_SSL"}); what they need (mechanisms, key
    stores) belongs in `properties`. `scram_users` are passwords by user name, for both SCRAM mechanisms. `heap` is Java's
    -Xmx for each node; `java_options` precede it. `start_timeout` in seconds limits each start. `log_dirs` is the number of
    directories among which each node divides its partitions (`log.dirs`).

    A context manager, plain or async; or call `start()` and `stop()`. All methods block; those that start or stop a node
    take seconds: on an event loop use `await asyncio.to_thread(kafka.restart, 1)`. The nodes are killed when the
    process that started them ends, even by SIGKILL.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        version: str = KAFKA_VERSION,
        properties: Mapping[str, Value] | None = None,
        listeners: Mapping[str, str] | None = None,
        scram_users: Mapping[str, str] | None = None,
        heap: str = "512m",
        java_options: Sequence[str] = QUICK_START,
        start_timeout: float = 60.0,
        log_dirs: int = 1,
    ) -> None:
        if nodes < 1:
            raise ConfigError("nodes", nodes, "at least 1")
        if log_dirs < 1:
            raise ConfigError("log_dirs", log_dirs, "at least 1")
        self.version = version
        self._count = nodes
        self._overrides = dict(properties or {})
        check_overrides(self._overrides)
        self._listeners = dict(listeners or {})
        self._scram_users = dict(scram_users or {})
        check_listeners(self._listeners)
        self._java_options = (*java_options, f"-Xmx{heap}")
        self._start_timeout = start_timeout  # seconds
        self._log_dirs = log_dirs
        self._java: list[str] = []  # the command line up to the class path
        self._cluster: ApacheCluster | None = None

    def __repr__(self) -> str:
        nodes = self._cluster.nodes.values() if self._cluster is not None else ()
        return f"<ApacheKafka {self.version} {', '.join(map(repr, nodes)) or 'not started'}>"

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, comma-separated, running or not."""
        return ",".join(self.address(node_id) for node_id in self.node_ids)

    @property
    def cluster_id(self) -> str:
        """Kafka's id of this cluster; each `start()` creates a new one."""
        return self._started().cluster_id

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The ids of all nodes."""
        return tuple(range(1, self._count + 1))

    def address(self, node_id: int, listener: str = "PLAINTEXT") -> str:
        """Return `host:port` of one node's listener. It does not change when the node restarts."""
        node = self._node(node_id)
        if listener != "PLAINTEXT" and listener not in node.listeners:
            raise UsageError(
                f"there is no listener {listener!r}: the listeners are {', '.join(['PLAINTEXT', *node.listeners])}"
            )
        return f"{HOST}:{node.listeners.get(listener, node.port)}"

    def pid(self, node_id: int) -> int | None:
        """Return the process id of one node, None while it is not running."""
        return self._node(node_id).pid

    def data(self, node_id: int) -> Path:
        """Return the directory of a node's logs (the first of `log.dirs`), with one directory per partition."""
        return self._node(node_id).data

    def log_tail(self, node_id: int, lines: int = 40) -> str:
        """Return the last lines that a node has logged."""
        return self._node(node_id).log_tail(lines)

    def start(self) -> None:
        """Start all nodes, and wait until each answers and knows all the others.

        Raises JavaNotFound, KafkaJarsUnavailable, or KafkaStartError with the errors of a node's log; after an error no
        node is left running. UsageError if it is running already, and in a frozen program.
        """
        self._start(threading.Event())

    def stop(self) -> None:
        """Kill all nodes and remove their data. Safe to call twice.

        If there is no class archive yet, one node is shut down cleanly within 15 s instead: it writes an archive of
        Kafka's classes to the user's cache, with which later clusters start twice as fast
        (`asyncgroup.testing.java_server.class_archive`).
        """
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def kill(self, node_id: int) -> None:
        """End a node by SIGKILL; its data stays on disk."""
        self._node(node_id).kill()

    def stop_node(self, node_id: int, limit: float = 30.0) -> None:
        """Shut a node down cleanly by SIGTERM, in which it moves its leaders; after `limit` seconds SIGKILL."""
        self._node(node_id).stop(limit)

    def start_node(self, node_id: int) -> None:
        """Start a node that is down, with its data and port, and wait until it is back in the cluster.

        After a kill this takes `broker.session.timeout.ms` (3 s here) longer: until then the controller considers the
        killed broker alive.
        """
        self._node(node_id)
        self._started().start_node(node_id)

    def restart(self, node_id: int) -> None:
        """Shut a node down if it is running, and start it again."""
        self.stop_node(node_id)
        self.start_node(node_id)

    def suspend(self, node_id: int) -> None:
        """SIGSTOP: the node keeps its connections but does not answer, like a machine that hangs."""
        self._node(node_id).suspend()

    def resume(self, node_id: int) -> None:
        """SIGCONT: the node continues where it was stopped; its timeouts are then due."""
        self._node(node_id).resume()

    def run_tool(self, main_class: str, *arguments: str, limit: float = 60.0) -> str:
        """Run one of Kafka's own command-line tools, and return its output.

        For example `run_tool("org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", …)`.

        Raises KafkaToolError if it fails or takes longer than `limit` seconds.
        """
        self._started()
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = [*self._java, *QUICK_START, "-XX:-UsePerfData", quiet, main_class, *arguments]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise KafkaToolError(f"{main_class} took longer than {limit:g} s") from error
        if done.returncode != 0:
            raise KafkaToolError(
                f"{main_class} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await start_in_thread(self._start, self.stop)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.stop)

    def _start(self, abandoned: threading.Event) -> None:
        if self._cluster is not None:
            raise UsageError("this ApacheKafka is running already: call stop() first")
        refuse_frozen("Apache Kafka")
        java, jars = require_java("run Apache Kafka"), kafka_jars(self.version)
        archive = ClassArchive(java, jars)
        self._java = [str(java.executable), *archive.options, "-cp", f"{jars}/*"]
        for attempt in range(1, _ATTEMPTS + 1):
            self._cluster = ApacheCluster(
                self._count,
                self._java,
                self._java_options,
                self._overrides,
                self._start_timeout,
                self._listeners,
                self._scram_users,
                archive,
                self._log_dirs,
            )
            try:
                self._cluster.start(abandoned)
                return
            except BaseException as error:
                self.stop()
                if not isinstance(error, PortInUse) or attempt == _ATTEMPTS:
                    raise

    def _started(self) -> ApacheCluster:
        if self._cluster is None:
            raise UsageError(
                "this ApacheKafka is not running: call start(), or enter it as a context manager"
            )
        return self._cluster

    def _node(self, node_id: int) -> KafkaNode:
        nodes = self._started().nodes
        if node_id not in nodes:
            raise UsageError(f"there is no node {node_id}: the node ids are {', '.join(map(str, nodes))}")
        return nodes[node_id]
