"""The embedded cluster for code that blocks: in a thread of its own, with plain methods.

with KafkaServer(nodes=3) as kafka:
    kafka.create_topic("orders", 6)
    ...  # any client at kafka.bootstrap_servers: confluent-kafka, Java, Spark
    kafka.stop_node(1)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from asyncgroup.broker import EmbeddedCluster, GroupView
from asyncgroup.broker.seeding import Seed
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.model import Header, Record, RecordMetadata
from asyncgroup.testing.adjustable_loop import AdjustableLoop
from asyncgroup.testing.server_facades import ServerFaults, ServerHistory

__all__ = ["KafkaServer"]

_T = TypeVar("_T")

_CALL_TIMEOUT: Final = 60.0
"""Seconds after which a call to the broker's thread is given up: it is stuck."""


class KafkaServer:
    """An `EmbeddedCluster` on an event loop in a thread of its own; options are those of `EmbeddedCluster`.

    `faults` and `history` are as there, but a fault is made all in one call, `faults.on("Fetch", nth=2, delay=1.0)` (the
    options: `asyncgroup.testing.fault_options.FaultOptions`), and `wait_hit` and `wait_for` take a `timeout`.

    Entered once, as a context manager. Every method may be called from any thread and blocks until it is done.
    What else the cluster can do goes through `call`. Leaving raises what leaving the cluster does: `UnusedFaults`
    for a fault that was never hit.
    """

    def __init__(self, nodes: int = 1, **options: Any) -> None:
        self._cluster = EmbeddedCluster(nodes, **options)
        self._cluster.faults.strict = True
        self._thread = threading.Thread(target=self._run, name="kafka-server", daemon=True)
        self._started: Future[None] = Future()
        self._stop_requested: Future[None] = Future()
        self._result: Future[None] = Future()
        self._call_lock = threading.Lock()
        self._loop: AdjustableLoop | None = None
        """The thread's loop while it takes calls; what is called under the lock while it is there is called for sure."""
        self._ignore_unused_faults = False
        self.faults: Final = ServerFaults(self.call)
        """What should go wrong: `kafka.faults.on(api="Fetch", node=1, error="NOT_LEADER_OR_FOLLOWER")`."""
        self.history: Final = ServerHistory(self.call)
        """What was asked and answered so far."""

    def __repr__(self) -> str:
        state = "running" if self._loop is not None else "ended" if self._started.done() else "not started"
        return f"<KafkaServer {state}: {self._cluster!r}>"

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start all nodes; raises what the cluster's start raises."""
        if self._started.done():
            raise UsageError("a KafkaServer is entered once only; make a new one")
        self._thread.start()
        try:
            self._started.result(_CALL_TIMEOUT)
        except BaseException:  # an interrupt among them: nobody will leave what was never entered
            self._stop()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all nodes and end the thread."""
        if exc is not None:
            self.ignore_unused_faults()
        self._stop()
        if exc is None:
            self._result.result(0)  # raises what the thread raised; TimeoutError if it is stuck

    def _stop(self) -> None:
        if not self._stop_requested.done():
            self._stop_requested.set_result(None)
        self._thread.join(_CALL_TIMEOUT)

    def ignore_unused_faults(self) -> None:
        """Don't complain of unused faults at the end: the test has failed already, its own story counts."""
        self._ignore_unused_faults = True

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=AdjustableLoop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # noqa: BLE001  whoever started the thread gets it
                (self._result if self._started.done() else self._started).set_exception(error)
            else:
                self._result.set_result(None)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdjustableLoop)
        try:
            async with self._cluster:
                self._loop = loop
                self._started.set_result(None)
                await asyncio.wrap_future(self._stop_requested)
                with self._call_lock:
                    self._loop = None
                await asyncio.sleep(0)  # calls that came just before begin, and end with the loop
                if self._ignore_unused_faults:
                    self._cluster.faults.clear()
        finally:
            self._loop = None

    # -- calls to the thread ---------------------------------------------------------------------------------

    @overload
    def call(self, function: Callable[[EmbeddedCluster], Awaitable[_T]], *, timeout: float = ...) -> _T: ...

    @overload
    def call(self, function: Callable[[EmbeddedCluster], _T], *, timeout: float = ...) -> _T: ...

    def call(self, function: Callable[[EmbeddedCluster], Any], *, timeout: float = _CALL_TIMEOUT) -> Any:
        """What `function(cluster)` returns, called on the cluster's own loop and awaited if need be.

        TimeoutError after `timeout` seconds, at which what it awaits is cancelled; ClosedError if the server ends meanwhile.
        """
        if threading.current_thread() is self._thread:
            raise UsageError("a call from the KafkaServer's own thread would wait for itself")

        async def work() -> Any:
            result = function(self._cluster)
            return await result if isinstance(result, Awaitable) else result

        with self._call_lock:
            if self._loop is None:
                raise ClosedError("the KafkaServer does not run: use it inside its `with` block")
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout)
        except CancelledError:
            raise ClosedError("the KafkaServer has ended, and this call with it") from None
        finally:
            future.cancel()  # if nobody waits for it any more

    def advance(self, seconds: float) -> None:
        """Put the broker's clock forward, as if it had been suspended for so long.

        Session timeouts, retention and expiry fall due at once; clients' clocks stay as they are, so their members
        are expired if `seconds` is more than their session timeout.
        """
        if seconds < 0:
            raise ConfigError("seconds", seconds, "0 or more")
        self.call(lambda _: self._advance(seconds))

    def _advance(self, seconds: float) -> None:
        assert self._loop is not None
        self._loop.advance(seconds)

    # -- nodes -----------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of all nodes, also of stopped ones."""
        return self.call(lambda cluster: cluster.bootstrap_servers)

    def stop_node(self, node_id: int) -> None:
        """Kill a node; see `EmbeddedCluster.stop_node`."""
        self.call(lambda cluster: cluster.stop_node(node_id))

    def start_node(self, node_id: int) -> None:
        """Start a stopped node at its old port."""
        self.call(lambda cluster: cluster.start_node(node_id))

    def slow_node(self, node_id: int, delay: float) -> None:
        """Let a node handle every request `delay` seconds later; 0 ends it."""
        self.call(lambda cluster: cluster.slow_node(node_id, delay))

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; None takes the cluster's default. Raises `broker.Refused` as CreateTopics would."""
        self.call(lambda c: c.create_topic(name, partitions, replication_factor, configs=configs))

    def create_partitions(self, name: str, total: int) -> None:
        """Let a topic have `total` partitions, more than now."""
        self.call(lambda cluster: cluster.create_partitions(name, total))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets committed for it."""
        self.call(lambda cluster: cluster.delete_topic(name))

    def produce(
        self,
        topic: str,
        *records: Seed,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> list[RecordMetadata]:
        """Append records to a topic at once, without a client; see `EmbeddedCluster.produce`."""
        return self.call(
            lambda c: c.produce(topic, *records, partition=partition, headers=headers, timestamp=timestamp)
        )

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets of a group that has no members; see `EmbeddedCluster.commit`."""
        self.call(lambda cluster: cluster.commit(group_id, offsets))

    def records(self, topic: str, partition: int | None = None) -> Sequence[Record]:
        """All records of a topic, or of one partition, decoded; partition after partition, by offset."""
        return self.call(lambda cluster: cluster.records(topic, partition))

    # -- leaders, coordinators, groups -----------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int:
        """The id of the node that leads a partition, -1 if none does."""
        return self.call(lambda cluster: cluster.leader(topic, partition))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a live node the leader of a partition."""
        self.call(lambda cluster: cluster.move_leader(topic, partition, node_id))

    def coordinator(self, group_id: str) -> int:
        """The id of the node that coordinates a group, -1 if none does."""
        return self.call(lambda cluster: cluster.coordinator(group_id))

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group."""
        self.call(lambda cluster: cluster.move_coordinator(group_id, node_id))

    def group(self, group_id: str) -> GroupView:
        """A picture of a group as it is now."""
        return self.call(lambda cluster: cluster.group(group_id))

    @property
    def groups(self) -> list[str]:
        """The ids of all groups that some node coordinates."""
        return self.call(lambda cluster: cluster.groups)
