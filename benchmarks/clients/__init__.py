"""The clients that are compared: each consumes in a group with automatic commits, as its users would write it.

Every case reads the same topic with the same fetch sizes, accesses key and value of each record, and counts with a
`Meter`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "AUTO_COMMIT_SECONDS",
    "BATCH_RECORDS",
    "BUFFER_BYTES",
    "CASES",
    "FETCH_MAX_BYTES",
    "FETCH_MAX_WAIT",
    "PARTITION_MAX_BYTES",
    "Case",
    "Settings",
    "consumer_options",
]

AUTO_COMMIT_SECONDS: Final = 1.0
FETCH_MAX_BYTES: Final = 50 << 20
PARTITION_MAX_BYTES: Final = 1 << 20
FETCH_MAX_WAIT: Final = 0.5
"""Seconds that a broker may wait for more bytes (fetch.max.wait.ms)."""
BATCH_RECORDS: Final = 500
"""The largest batch, for clients that need a limit: Java's `max.poll.records`, and the fastest value for all of them."""
BUFFER_BYTES: Final = 64 << 20
"""Bytes that a client may buffer undelivered, for clients with such a setting."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured process. `limit`: seconds after which it stops, even if records are left."""

    bootstrap_servers: str
    topic: str
    group_id: str
    partitions: int
    records: int
    limit: float
    hot: int = 0
    """Records of the first partition, if it has more than the others."""
    isolation: str = "read_uncommitted"

    def share(self, partition: int) -> int:
        """Return the records of a partition."""
        if self.hot and not partition:
            return self.hot
        return (self.records - self.hot) // (self.partitions - bool(self.hot))


def consumer_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments that the consumers of aiokafka and kafka-python have in common."""
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "group_id": settings.group_id,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": True,
        "auto_commit_interval_ms": int(AUTO_COMMIT_SECONDS * 1000),
        "fetch_max_bytes": FETCH_MAX_BYTES,
        "max_partition_fetch_bytes": PARTITION_MAX_BYTES,
        "fetch_max_wait_ms": int(FETCH_MAX_WAIT * 1000),
        "isolation_level": settings.isolation,
    }


class Case(NamedTuple):
    """A client and the API it is used by; `baseline` is the case that ratios refer to.

    A case that is not a `default` one is measured only if its name is given.
    """

    name: str
    kind: Literal["batch", "record"]
    distribution: str
    call: str
    function: str
    baseline: str
    default: bool = True

    def load(self) -> Callable[..., Any]:
        """Import and return the function `(settings, meter)`, which may be async."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(f"benchmarks.clients.{module}"), name)
        return function

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.load())


def _batch(name: str, distribution: str, call: str, function: str) -> Case:
    return Case(name, "batch", distribution, call, function, "aiokafka.getmany")


def _without_thread(name: str, kind: Literal["batch", "record"], call: str) -> Case:
    """Return the case of asyncgroup without its heartbeat thread; ratios are to the same case with it."""
    function = f"asyncgroup_client:{name}_without_thread"
    own = f"asyncgroup.{name}"
    return Case(
        f"{own}-without-thread", kind, "asyncgroup", f"{call}, no thread", function, own, default=False
    )


def _own(name: str, call: str, function: str) -> Case:
    """Return another way to read with asyncgroup, one record at a time."""
    return Case(
        f"asyncgroup.{name}",
        "record",
        "asyncgroup",
        call,
        f"asyncgroup_client:{function}",
        "aiokafka.iterate",
        default=False,
    )


def _record(name: str, distribution: str, call: str, function: str) -> Case:
    return Case(name, "record", distribution, call, function, "aiokafka.iterate")


CASES: Final[dict[str, Case]] = {
    case.name: case
    for case in (
        _batch("asyncgroup.batches", "asyncgroup", "batches() + mark", "asyncgroup_client:batches"),
        _without_thread("batches", "batch", "batches()"),
        _batch("aiokafka.getmany", "aiokafka", "getmany()", "aiokafka_client:getmany"),
        _batch(
            "aiokafka.getmany-n", "aiokafka", f"getmany({BATCH_RECORDS})", "aiokafka_client:getmany_limited"
        ),
        _batch(
            "confluent.consume", "confluent-kafka", f"Consumer.consume({BATCH_RECORDS})", "confluent:consume"
        ),
        _batch(
            "confluent.aio",
            "confluent-kafka",
            f"AIOConsumer.consume({BATCH_RECORDS})",
            "confluent:aio_consume",
        ),
        _batch("kafka-python.poll", "kafka-python", f"poll({BATCH_RECORDS})", "kafka_python:poll"),
        _record("asyncgroup.records", "asyncgroup", "async for + mark", "asyncgroup_client:records"),
        _without_thread("records", "record", "async for"),
        _own("merged", "group.records() + mark", "merged"),
        _own("in-thread", "in_thread + mark", "threads"),
        _own("queue", "WorkQueue + ack", "queue"),
        _record("aiokafka.iterate", "aiokafka", "async for", "aiokafka_client:iterate"),
        _record("confluent.poll", "confluent-kafka", "Consumer.poll()", "confluent:poll"),
        _record("confluent.aio-poll", "confluent-kafka", "AIOConsumer.poll()", "confluent:aio_poll"),
        _record("kafka-python.iterate", "kafka-python", "for", "kafka_python:iterate"),
    )
}
"""Cases by name, in the order of the table."""
