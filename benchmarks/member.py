"""A group member in a separate process: `python -m benchmarks.member CLIENT SETTINGS`.

The process imports its client library, prints `ready`, and joins the group when it reads a line. When it reads a second
line it leaves the group, prints a JSON object and exits: `receipts` (partition, offset and time of each record) and
`commits` (time of each successful commit). After each assignment it prints the number of its partitions. Times are
`time.monotonic_ns()`, which on Linux is the same clock for all processes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["MemberLog", "Settings", "main"]

CHECK_SECONDS: Final = 0.005
"""Seconds between two checks whether the member shall leave."""
_MODULES: Final = {
    "asyncgroup": "asyncgroup.group",
    "aiokafka": "aiokafka",
    "confluent-kafka": "confluent_kafka",
}
POLL_SECONDS: Final = 0.05
"""The timeout of confluent-kafka's `poll`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a member; durations in seconds.

    `strategy` is an assignor, or `consumer` for the consumer protocol (KIP-848), in which the broker has the heartbeat
    interval and the session timeout.
    """

    bootstrap_servers: str
    group_id: str
    topic: str
    heartbeat: float
    session_timeout: float = 10.0
    commit_interval: float = 1.0
    strategy: str = "range"
    at_heartbeat: bool = False


class MemberLog:
    """Records received and successful commits, with their times."""

    def __init__(self) -> None:
        self.receipts: list[tuple[int, int, int]] = []
        self.commits: list[int] = []
        self.stopping = threading.Event()

    def received(self, partition: int, offset: int) -> None:
        """Log a record that the client just delivered."""
        self.receipts.append((partition, offset, time.monotonic_ns()))

    def committed(self) -> None:
        """Log a commit that was just acknowledged."""
        self.commits.append(time.monotonic_ns())

    @staticmethod
    def assigned(number: int) -> None:
        """Report the current number of partitions, and the time, to the parent process."""
        print(f"assigned {number} {time.monotonic_ns()}", flush=True)

    def wait_for_stop(self) -> None:
        """Wait for the line that makes the member leave; runs on a thread."""
        sys.stdin.readline()
        self.stopping.set()


async def _asyncgroup(settings: Settings, log: MemberLog) -> None:
    from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session, TopicPartition

    class Logged(Handler):
        async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
            log.assigned(len(session.claims))

        async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
            log.assigned(len(session.claims) - len(partitions))

        async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
            async for record in claim:
                log.received(record.partition, record.offset)
                claim.mark(record)

    class Commits:
        def on_commit(self, _group_id: str, offsets: object, errors: object) -> None:
            if offsets and not errors:
                log.committed()

    protocol: dict[str, Any] = {"group_protocol": "consumer"}
    if settings.strategy != "consumer":
        protocol = {
            "heartbeat_interval": settings.heartbeat,
            "session_timeout": settings.session_timeout,
            "assignors": (settings.strategy,),
        }
    config = ConsumerConfig(
        auto_offset_reset="earliest", auto_commit_interval=settings.commit_interval, **protocol
    )
    servers = settings.bootstrap_servers
    async with ConsumerGroup(servers, settings.group_id, config, hooks=[Commits()]) as group:
        running = asyncio.create_task(group.run(settings.topic, Logged()))
        while not log.stopping.is_set() and not running.done():  # noqa: ASYNC110  set by a thread
            await asyncio.sleep(CHECK_SECONDS)
        await group.aclose(at_heartbeat=settings.at_heartbeat)
        await running


async def _aiokafka(settings: Settings, log: MemberLog) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    class AssignmentListener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            log.assigned(len(assigned))

    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=int(settings.heartbeat * 1000),
        session_timeout_ms=int(settings.session_timeout * 1000),
        partition_assignment_strategy=(RangePartitionAssignor,),
        auto_commit_interval_ms=int(settings.commit_interval * 1000),
    )
    consumer.subscribe([settings.topic], listener=AssignmentListener())

    async def read() -> None:
        async for record in consumer:
            log.received(record.partition, record.offset)

    async with consumer:
        _watch_commits(consumer, log)
        reading = asyncio.create_task(read())
        while not log.stopping.is_set() and not reading.done():  # noqa: ASYNC110  set by a thread
            await asyncio.sleep(CHECK_SECONDS)
        reading.cancel()
        await asyncio.wait([reading])


def _watch_commits(consumer: Any, log: MemberLog) -> None:
    """MemberLog the commits of an AIOKafkaConsumer, which has no callback for automatic ones."""
    coordinator = consumer._coordinator
    commit = coordinator._do_commit_offsets

    async def watched(assignment: Any, offsets: Any) -> None:
        await commit(assignment, offsets)
        if offsets:
            log.committed()

    coordinator._do_commit_offsets = watched


def _confluent(settings: Settings, log: MemberLog) -> None:
    from confluent_kafka import Consumer, KafkaException

    def on_commit(error: Any, partitions: list[Any]) -> None:
        if error is None and partitions:
            log.committed()

    protocol: dict[str, Any] = {"group.protocol": "consumer"}
    if settings.strategy != "consumer":
        protocol = {
            "session.timeout.ms": int(settings.session_timeout * 1000),
            "heartbeat.interval.ms": int(settings.heartbeat * 1000),
            "partition.assignment.strategy": settings.strategy,
        }
    consumer = Consumer(
        {
            **protocol,
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": settings.group_id,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": int(settings.commit_interval * 1000),
            "on_commit": on_commit,
        }
    )
    owned: set[int] = set()

    def assigned(_: Any, partitions: list[Any]) -> None:
        owned.update(tp.partition for tp in partitions)
        log.assigned(len(owned))

    def revoked(_: Any, partitions: list[Any]) -> None:
        owned.difference_update(tp.partition for tp in partitions)
        log.assigned(len(owned))

    consumer.subscribe([settings.topic], on_assign=assigned, on_revoke=revoked)
    try:
        while not log.stopping.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.retriable() or not error.fatal():
                    continue  # librdkafka reports broker failures here and recovers by itself
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            log.received(partition, offset)
    finally:
        consumer.close()


def main(client: str, settings_json: str) -> None:
    """Import the client, wait for the first line, consume until the second, print the result."""
    settings = Settings(**json.loads(settings_json))
    log = MemberLog()
    importlib.import_module(_MODULES[client])
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=log.wait_for_stop, daemon=True).start()
    if client == "confluent-kafka":
        _confluent(settings, log)
    else:
        asyncio.run((_asyncgroup if client == "asyncgroup" else _aiokafka)(settings, log))
    print(json.dumps({"receipts": log.receipts, "commits": log.commits}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
