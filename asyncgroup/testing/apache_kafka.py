"""A real Apache Kafka for tests and benchmarks, from pip-installable parts.

    with ApacheKafka() as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap_servers})

It needs Java 17 or later (`asyncgroup.java`) and, once, the network (`kafka_jars`). Nodes are KRaft brokers
and controllers in one process each, listen on 127.0.0.1 only and keep their data in a temporary directory.
POSIX only.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from asyncgroup.errors import AsyncGroupError, ConfigError, UsageError
from asyncgroup.java import require_java
from asyncgroup.testing.apache_cluster import ApacheCluster
from asyncgroup.testing.class_archive import ClassArchive
from asyncgroup.testing.kafka_jars import KAFKA_VERSION, KafkaJarsUnavailable, kafka_jars
from asyncgroup.testing.kafka_node import KafkaNode, KafkaStartError, PortInUse
from asyncgroup.testing.kafka_properties import HOST, Value, check_listeners, check_overrides

__all__ = [
    "KAFKA_VERSION",
    "QUICK_START",
    "ApacheKafka",
    "KafkaJarsUnavailable",
    "KafkaStartError",
    "KafkaToolError",
    "kafka_jars",
]

# One thread collects garbage and the compiler stops at its first stage: ready sooner, and the cores are left
# to the tests. A benchmark in which the broker could be the slower end should pass `java_options=()`.
QUICK_START: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_ATTEMPTS: Final = 5  # with new ports each


class KafkaToolError(AsyncGroupError):
    """One of Kafka's command-line tools failed or took too long; the message has what it printed."""


class ApacheKafka:
    """A cluster of `nodes` processes with the ids 1, 2, 3, …

    `properties` are added to each `server.properties` and win over the quick settings that are made here for
    tests. `listeners` are further listeners of each node, security protocols by name ({"SECURE": "SASL_SSL"}); what
    they need (mechanisms, key stores) stands in `properties`. `scram_users` are passwords by user, known to both SCRAM
    mechanisms from the start. `heap` is Java's -Xmx for each node, `java_options` go before it. `start_timeout` in seconds limits
    each start.

    A context manager, plain or async; or call `start()` and `stop()`. The methods block, and where a node
    starts or stops for seconds: on an event loop use `await asyncio.to_thread(kafka.restart, 1)`. No process
    outlives the one that started it, even if that is killed.
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
    ) -> None:
        if nodes < 1:
            raise ConfigError("nodes", nodes, "at least 1")
        self.version = version
        self._count = nodes
        self._overrides = dict(properties or {})
        check_overrides(self._overrides)
        self._listeners, self._scram_users = dict(listeners or {}), dict(scram_users or {})
        check_listeners(self._listeners)
        self._java_options = (*java_options, f"-Xmx{heap}")
        self._start_timeout = start_timeout
        self._java: list[str] = []  # the command line up to the class path
        self._cluster: ApacheCluster | None = None

    def __repr__(self) -> str:
        nodes = self._cluster.nodes.values() if self._cluster is not None else ()
        return f"<ApacheKafka {self.version} {', '.join(map(repr, nodes)) or 'not started'}>"

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, with commas, whether they are running or not."""
        return ",".join(self.address(node_id) for node_id in self.node_ids)

    @property
    def cluster_id(self) -> str:
        """Kafka's id of this cluster, another one after each `start()`."""
        return self._started().cluster_id

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The ids of all nodes."""
        return tuple(range(1, self._count + 1))

    def address(self, node_id: int, listener: str = "PLAINTEXT") -> str:
        """`host:port` of one node, or of a further listener of it; it stays the same over the node's restarts."""
        node = self._node(node_id)
        if listener != "PLAINTEXT" and listener not in node.listeners:
            raise UsageError(
                f"there is no listener {listener!r}: {', '.join(['PLAINTEXT', *node.listeners])}"
            )
        return f"{HOST}:{node.listeners.get(listener, node.port)}"

    def pid(self, node_id: int) -> int | None:
        """The process id of one node, None while it is not running."""
        return self._node(node_id).pid

    def data(self, node_id: int) -> Path:
        """The directory that holds a node's logs (`log.dirs`), one directory a partition."""
        return self._node(node_id).data

    def log_tail(self, node_id: int, lines: int = 40) -> str:
        """The last lines that a node has logged."""
        return self._node(node_id).log_tail(lines)

    def start(self) -> None:
        """Starts all nodes and waits until each answers and knows all the others.

        Raises JavaNotFound, KafkaJarsUnavailable, or KafkaStartError with the tail of a log; nothing runs
        then.
        """
        self._start(threading.Event())

    def stop(self) -> None:
        """Kills all nodes (nothing of them is kept) and removes their data. May be called twice.

        Of the first cluster ever one node is shut down in order, within 15 s: it leaves an archive of Kafka's classes in
        the user's cache, from which later ones start twice as fast (`asyncgroup.testing.class_archive`).
        """
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def kill(self, node_id: int) -> None:
        """Ends a node by SIGKILL; what it has written stays on its disk."""
        self._node(node_id).kill()

    def stop_node(self, node_id: int, limit: float = 30.0) -> None:
        """Shuts a node down in order, handing over its leaders (SIGTERM); after `limit` seconds SIGKILL."""
        self._node(node_id).stop(limit)

    def start_node(self, node_id: int) -> None:
        """Starts a node that is down, with its data and port, and waits until the cluster has it back.

        After a kill that takes `broker.session.timeout.ms` (3 s here) longer, as the cluster holds it for alive.
        """
        self._node(node_id)
        self._started().start_node(node_id)

    def restart(self, node_id: int) -> None:
        """Shuts a node down if it is running, and starts it again."""
        self.stop_node(node_id)
        self.start_node(node_id)

    def suspend(self, node_id: int) -> None:
        """SIGSTOP: the node keeps its connections and answers nothing, like a machine that hangs."""
        self._node(node_id).suspend()

    def resume(self, node_id: int) -> None:
        """SIGCONT: the node goes on where it was, and finds out that time has passed."""
        self._node(node_id).resume()

    def run_tool(self, main_class: str, *arguments: str, limit: float = 60.0) -> str:
        """Runs one of Kafka's own command-line tools and returns what it prints.

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
        abandoned = threading.Event()
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, abandoned))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: it is told to give up, and cleans up what it has started.
            abandoned.set()
            with contextlib.suppress(AsyncGroupError):
                await starting
                self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _start(self, abandoned: threading.Event) -> None:
        if self._cluster is not None:
            raise UsageError("this cluster is running already: stop() it first")
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
            raise UsageError("this cluster is not running: start() it, or enter it as a context manager")
        return self._cluster

    def _node(self, node_id: int) -> KafkaNode:
        nodes = self._started().nodes
        if node_id not in nodes:
            raise UsageError(f"there is no node {node_id}: the nodes are {', '.join(map(str, nodes))}")
        return nodes[node_id]
