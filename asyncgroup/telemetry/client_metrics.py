"""ClientMetrics: a hook that counts the events of clients, and reads their state when it is asked.

Nothing is done for a record: it counts for each fetch, batch, commit and heartbeat, and reads claims, `health()` and
`statistics()` at the time of a scrape. It knows neither Prometheus nor OpenTelemetry, which read the same values.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.error_types import error_type
from asyncgroup.errors import AsyncGroupError, CallerCancelled, GroupClosed, HandlerFailed, SessionEnd
from asyncgroup.group.consumer_group import ConsumerGroup
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.hooks import AttachRole, StallKind, TransactionOutcome
from asyncgroup.telemetry.client_readings import (
    read_claim,
    read_consumers,
    read_counts,
    read_health,
    read_queue,
)
from asyncgroup.telemetry.readings import LabelValues, Readings

if TYPE_CHECKING:
    from asyncgroup.consumer import Consumer
    from asyncgroup.group.sessions.session import Session
    from asyncgroup.model import BatchResult, TopicPartition
    from asyncgroup.offsets import CommittedOffset
    from asyncgroup.producer import Producer
    from asyncgroup.pulsar.core import ClientCore
    from asyncgroup.workqueue.work_queue import WorkQueue

__all__ = ["ClientMetrics"]

_STOPS: Final = (GroupClosed, CallerCancelled, HandlerFailed)
"""Ends of a session after which the program decides whether another one follows."""

_COMMITS: Final = ("OffsetCommit", "TxnOffsetCommit")


class ClientMetrics:
    """The metrics of all clients that it is a hook of, for one event loop.

        metrics = ClientMetrics()
        async with ConsumerGroup("localhost:9092", "orders", hooks=[metrics]) as group: ...

    `read()` returns the values of all metrics in `METRICS`. With `partitions=True` also those of each partition, which are
    many series for a group of many partitions. Gauges of a claim end with the claim, those of a client when it closes;
    counters stay.
    """

    def __init__(self, *, partitions: bool = False) -> None:
        self._partitions = partitions
        self._counted = Readings()  # by events, and of claims and queues that have ended
        self._groups: list[ConsumerGroup] = []
        self._queues: list[WorkQueue] = []
        self._producers: list[Producer] = []
        self._pulsar: dict[int, ClientCore] = {}
        """What the producers and consumers of each client of Pulsar share, by its `id`."""
        self._claims: dict[int, tuple[str, Claim]] = {}
        """Claims whose handler runs, with their group, by their `id`."""
        self._gaps: dict[str, deque[float]] = {}
        """By group: loop times at which sessions have ended that are followed by another one."""
        self._sessions: dict[str, int] = {}
        """By group: the number of sessions that run."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the clients; None before the first one is entered."""

    def __repr__(self) -> str:
        names = [repr(each.group_id) for each in self._groups]
        return f"<{type(self).__name__} of {', '.join(names) or 'no open group'}, {len(self._producers)} producers>"

    def listen(self, on_observe: Callable[[str, float, LabelValues], None] | None) -> None:
        """Call a function with each value of a histogram: name, value, labels; None ends that."""
        self._counted.on_observe = on_observe

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self) -> Readings:
        """Return all values now. Call it in the event loop of the clients; it sends nothing and does not wait."""
        self._drop_closed()
        readings = self._counted.copy()
        for group in self._groups:
            read_health(readings, group.health())
        for group_id, claim in self._claims.values():
            read_claim(readings, group_id, claim, partitions=self._partitions)
        for queue in self._queues:
            read_queue(readings, queue.group_id, queue.statistics(), partitions=self._partitions)
            readings.gauge("healthy", int(queue.health().is_healthy), queue.group_id)
        self._read_producers(readings)
        return readings

    def _read_producers(self, readings: Readings) -> None:
        for producer in self._producers:
            if (used := producer._inner.load) is not None:
                readings.gauge("producer_buffer_bytes", used)
        for core in self._pulsar.values():
            readings.gauge("producer_buffer_bytes", core.memory.used)
            read_consumers(readings, core.consumers.values())

    def _drop_closed(self) -> None:
        """Forget clients that were closed, which have no gauges any more; the counts of a queue are kept."""
        for queue in [each for each in self._queues if each.health().state == "closed"]:
            self._queues.remove(queue)
            read_counts(self._counted, queue.group_id, queue.statistics().counts)
        self._groups = [each for each in self._groups if each.health().state != "closed"]
        self._producers = [each for each in self._producers if each._inner.load is not None]
        self._pulsar = {key: core for key, core in self._pulsar.items() if not core.is_closed}

    # --- events of clients --------------------------------------------------------------------------------------------

    def on_open(self, client: ConsumerGroup | Consumer | Producer | WorkQueue | Any, *_: object) -> None:
        """Read this client from now on, until it is closed."""
        from asyncgroup.producer import Producer
        from asyncgroup.workqueue.work_queue import WorkQueue

        self.loop = asyncio.get_running_loop()
        self._drop_closed()
        if isinstance(client, ConsumerGroup):
            self._groups.append(client)
        elif isinstance(client, Producer):
            self._producers.append(client)
        elif isinstance(client, WorkQueue):
            self._queues.append(client)
        elif (core := _core_of_pulsar(client)) is not None:
            self._pulsar[id(core)] = core

    def on_connect(self, *_: object) -> None:
        """Count an open connection."""
        self._counted.add("connections", 1)
        self._counted.add("connects_total", 1)

    def on_disconnect(self, *_: object) -> None:
        """Count a connection less."""
        self._counted.add("connections", -1)

    def on_response(self, node_id: int, api: str, seconds: float, *_: object) -> None:  # noqa: ARG002
        """Count an answer; keep the duration of fetches and commits."""
        self._counted.add("requests_total", 1, api)
        if api == "Fetch":
            self._counted.observe("fetch_seconds", seconds)
        elif api in _COMMITS:
            self._counted.observe("commit_seconds", seconds)
        elif api == "ACK":
            self._counted.observe("ack_seconds", seconds)

    def on_throttle(self, node_id: int, api: str, seconds: float, *_: object) -> None:  # noqa: ARG002
        """Add the time of a throttled connection."""
        self._counted.add("throttled_seconds_total", seconds, api)

    def on_fetch(self, node_id: int, size: int, *_: object) -> None:  # noqa: ARG002
        """Add the bytes of a fetch."""
        self._counted.add("fetched_bytes_total", size)

    # --- events of Pulsar's clients -------------------------------------------------------------------------------------

    def on_receive(
        self,
        group_id: str,
        topic: str,
        partition: int,  # noqa: ARG002
        records: int,
        size: int,
        *_: object,
    ) -> None:
        """Count the messages and bytes of an entry."""
        self._counted.add("fetched_bytes_total", size)
        self._counted.add("records_consumed_total", records, group_id, topic)
        self._counted.add("bytes_consumed_total", size, group_id, topic)

    def on_ack(
        self,
        group_id: str,
        topic: str,  # noqa: ARG002
        partition: int,  # noqa: ARG002
        entries: int,  # noqa: ARG002
        error: Exception | None,
        *_: object,
    ) -> None:
        """Count a command with acknowledgements."""
        self._counted.add("acks_total", 1, group_id)
        if error is not None:
            self._counted.add("ack_failures_total", 1, group_id, error_type(error))

    def on_attached(self, role: AttachRole, topic: str, partition: int, seconds: float, *_: object) -> None:  # noqa: ARG002
        """Count a registration, and keep the time without one."""
        self._counted.add("attaches_total", 1, role, topic)
        self._counted.observe("attach_seconds", seconds, role)

    def on_detached(self, role: AttachRole, topic: str, partition: int, error: Exception, *_: object) -> None:  # noqa: ARG002
        """Count the loss of a broker, or a registration that failed."""
        self._counted.add("detaches_total", 1, role, topic, error_type(error))

    def on_transaction_start(self, *_: object) -> None:
        """Count a transaction that begins."""
        self._counted.add("transactions_started_total", 1)

    def on_transaction_end(
        self,
        transaction: object,  # noqa: ARG002
        outcome: TransactionOutcome,
        seconds: float,
        *_: object,
    ) -> None:
        """Count a transaction by its outcome, and keep its duration."""
        self._counted.add("transactions_total", 1, outcome)
        self._counted.observe("transaction_seconds", seconds, outcome)

    # --- events of groups ---------------------------------------------------------------------------------------------

    def on_join(self, group_id: str, *_: object) -> None:
        """Count a join during a session; others belong to the session that ended before."""
        if self._sessions.get(group_id):
            self._counted.add("rebalances_total", 1, group_id, "Incremental")

    def on_session_start(self, session: Session, *_: object) -> None:
        """The time without a session ends."""
        group_id = session.group_id
        self._sessions[group_id] = self._sessions.get(group_id, 0) + 1
        if gaps := self._gaps.get(group_id):
            seconds = asyncio.get_running_loop().time() - gaps.popleft()
            self._counted.observe("rebalance_seconds", seconds, group_id)

    def on_session_end(self, session: Session, cause: SessionEnd | None, *_: object) -> None:
        """Count the end of a session by its cause."""
        group_id = session.group_id
        self._sessions[group_id] = max(0, self._sessions.get(group_id, 0) - 1)
        self._counted.add("rebalances_total", 1, group_id, type(cause).__name__)
        if not isinstance(cause, _STOPS):
            now = asyncio.get_running_loop().time()
            self._gaps.setdefault(group_id, deque(maxlen=16)).append(now)

    def on_handler_start(self, session: Session, claim: Claim, *_: object) -> None:
        """Read this claim from now on."""
        self._claims[id(claim)] = session.group_id, claim

    def on_handler_end(self, session: Session, claim: Claim, *_: object) -> None:
        """Keep what the claim has delivered; its gauges end."""
        if self._claims.pop(id(claim), None) is not None:
            ended = Readings()
            read_claim(ended, session.group_id, claim, partitions=False)
            for name in ("records_consumed_total", "bytes_consumed_total"):
                for labels, value in ended.numbers[name].items():
                    self._counted.add(name, value, *labels)

    def on_heartbeat(self, group_id: str, seconds: float, *_: object) -> None:
        """Keep the duration of a heartbeat."""
        self._counted.observe("heartbeat_seconds", seconds, group_id)

    def on_commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],  # noqa: ARG002
        errors: Mapping[TopicPartition, AsyncGroupError] | None,
        *_: object,
    ) -> None:
        """Count a commit, and the partitions of which it failed."""
        self._counted.add("commits_total", 1, group_id)
        for error in (errors or {}).values():
            self._counted.add("commit_failures_total", 1, group_id, error_type(error))

    def on_member_stalled(self, group_id: str, kind: StallKind, seconds: float, *_: object) -> None:
        """Count a stall, and the seconds of a blocked loop."""
        self._counted.add("member_stalls_total", 1, group_id, kind)
        if kind == "event loop":
            self._counted.add("loop_blocked_seconds_total", seconds, group_id)

    # --- events of producers ------------------------------------------------------------------------------------------

    def on_batch_done(self, batch: BatchResult, *_: object) -> None:
        """Count the records of a batch that was acknowledged or has failed."""
        counted, topic = self._counted, batch.topic
        if batch.error is not None:
            counted.add("record_errors_total", batch.records, topic, error_type(batch.error))
            return
        counted.add("records_sent_total", batch.records, topic)
        counted.add("bytes_sent_total", batch.wire_size, topic)
        counted.observe("batch_records", batch.records)
        counted.observe("send_seconds", batch.latency)


def _core_of_pulsar(client: object) -> ClientCore | None:
    """Return the core of a client or producer of Pulsar, None for others; a program without any does not import it here."""
    module = sys.modules.get("asyncgroup.pulsar.core")
    core = getattr(client, "_inner", None)
    return core if module is not None and isinstance(core, module.ClientCore) else None
