"""A rebalance with each Python client.

One member reads alone, a second one joins, the first one leaves, and the second one takes over. No record is
lost, and committed records are not read again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.interop.test_foreign_clients import KAFKA_PYTHON_POLL, aiokafka_produce, cluster, in_thread
from tests.interop.waiting import until

GROUP = "story"
LIMIT = 40.0


class Reader(Protocol):
    """A blocking consumer of any library."""

    def poll(self) -> list[bytes]:
        """Return the next values, possibly none after a timeout."""

    def leave(self) -> None:
        """Commit and leave."""


class Confluent:
    """librdkafka, with cooperative rebalancing.

    A commit that meets the end of a rebalance is refused, by Kafka too: it has the old generation. The partitions of its
    records may well stay, so it is repeated.
    """

    def __init__(self, servers: str, name: str) -> None:
        from confluent_kafka import Consumer

        settings = {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        self._consumer = Consumer(settings)
        self._consumer.subscribe(["orders"])
        self._is_uncommitted = False

    def poll(self) -> list[bytes]:
        messages = self._consumer.consume(500, timeout=0.05)
        values = [message.value() or b"" for message in messages if message.error() is None]
        self._is_uncommitted |= bool(values)
        self._commit()
        return values

    def _commit(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if not self._is_uncommitted:
            return
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS):
                raise
        else:
            self._is_uncommitted = False

    def leave(self) -> None:
        self._commit()
        self._consumer.close()


class KafkaPython:
    """kafka-python, with eager rebalancing."""

    def __init__(self, servers: str, name: str) -> None:
        from kafka import KafkaConsumer

        self._consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=servers.split(","),
            group_id=GROUP,
            client_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            fetch_max_wait_ms=50,
        )

    def poll(self) -> list[bytes]:
        polled = self._consumer.poll(timeout_ms=1000 * KAFKA_PYTHON_POLL)
        values = [record.value for records in polled.values() for record in records]
        if values:
            self._consumer.commit()
        return values

    def leave(self) -> None:
        self._consumer.close()


class Member:
    """Runs a reader in a thread, until `leaving` is set."""

    def __init__(
        self, make: Callable[[str, str], Reader], servers: str, name: str, seen: dict[str, list[bytes]]
    ) -> None:
        self.leaving = threading.Event()
        self._make = lambda: make(servers, name)
        self._values = seen.setdefault(name, [])

    def run(self) -> None:
        reader = self._make()
        try:
            while not self.leaving.is_set():
                self._values += reader.poll()
        finally:
            reader.leave()


@contextmanager
def leaving(*members: Member) -> Iterator[None]:
    """Make the members leave at the end of the block, also after an error."""
    try:
        yield
    finally:
        for member in members:
            member.leaving.set()


def holds(started: EmbeddedCluster, **wanted: int) -> bool:
    """Whether the group is stable, with the given number of partitions per member."""
    view = started.group(GROUP)
    held = {m.client_id: sum(map(len, m.assignment.values())) for m in view.members.values()}
    return view.state == "Stable" and held == wanted


@pytest.mark.full
@pytest.mark.parametrize("make", [Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
async def test_one_member_joins_and_another_one_leaves(make: Any) -> None:
    async with cluster() as started:
        servers, seen = started.bootstrap_servers, dict[str, list[bytes]]()

        def count() -> int:
            return sum(map(len, seen.values()))

        first, second = (Member(make, servers, name, seen) for name in ("first", "second"))
        async with asyncio.TaskGroup() as tasks:
            with leaving(first, second):
                tasks.create_task(in_thread(first.run))
                await until(lambda: holds(started, first=4))
                await aiokafka_produce(servers)
                await until(lambda: count() == 300)
                tasks.create_task(in_thread(second.run))
                await until(lambda: holds(started, first=2, second=2))
                await aiokafka_produce(servers)
                await until(lambda: count() == 600)
                first.leaving.set()
                await aiokafka_produce(servers)  # wakes the first member
                await until(lambda: holds(started, second=4) and count() == 900)
        assert all(len(values) >= 100 for values in seen.values())
        assert sorted(value for values in seen.values() for value in values) == sorted(
            3 * [b"value-%d" % number for number in range(300)]
        )
        view = started.group(GROUP)
        assert view.state == "Empty"
        assert sum(offset.offset for offset in view.offsets.values()) == 900


async def test_aiokafka_members_join_and_leave() -> None:
    from aiokafka import AIOKafkaConsumer

    async with cluster() as started:
        servers, seen = started.bootstrap_servers, dict[str, list[bytes]]()

        async def member(name: str, leave: asyncio.Event) -> None:
            values = seen.setdefault(name, [])
            consumer = AIOKafkaConsumer(
                "orders",
                bootstrap_servers=servers,
                group_id=GROUP,
                client_id=name,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=100,
            )
            async with consumer:
                while not leave.is_set():
                    batches = await consumer.getmany(timeout_ms=50)
                    values += [record.value for records in batches.values() for record in records]
                    if batches:
                        await consumer.commit()

        first, second = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(member("first", first))
            await until(lambda: holds(started, first=4))
            await aiokafka_produce(servers)
            await until(lambda: sum(map(len, seen.values())) == 300)
            tasks.create_task(member("second", second))
            await until(lambda: holds(started, first=2, second=2))
            await aiokafka_produce(servers)
            await until(lambda: sum(map(len, seen.values())) == 600)
            first.set()
            await until(lambda: holds(started, second=4))
            await aiokafka_produce(servers)
            await until(lambda: sum(map(len, seen.values())) == 900)
            second.set()
        assert len(seen["second"]) >= 300
        assert started.group(GROUP).state == "Empty"
        assert sum(offset.offset for offset in started.group(GROUP).offsets.values()) == 900


# -- kafka-python's transactions ----------------------------------------------------------------------------------------


def kafka_python_transactions(servers: str) -> list[bytes]:
    """Write two committed transactions and an aborted one, with offsets; return what read_committed reads."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    producer = KafkaProducer(bootstrap_servers=servers.split(","), transactional_id="kafka-python")
    producer.init_transactions()
    try:
        for values, commit in (((b"c0", b"c1"), True), ((b"lost",), False), ((b"c2",), True)):
            producer.begin_transaction()
            for value in values:
                producer.send("payments", value).get(LIMIT)
            if commit:
                offsets = {TopicPartition("payments", 0): OffsetAndMetadata(len(values), "", -1)}
                producer.send_offsets_to_transaction(offsets, "theirs")
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(timeout=LIMIT)
    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","), auto_offset_reset="earliest", isolation_level="read_committed"
    )
    consumer.assign([TopicPartition("payments", 0)])
    try:
        return [next(consumer).value for _ in range(3)]
    finally:
        consumer.close()


async def test_kafka_python_writes_and_reads_transactions() -> None:
    async with EmbeddedCluster(nodes=3) as started:
        started.create_topic("payments", 1)
        read = await in_thread(kafka_python_transactions, started.bootstrap_servers)
        assert read == [b"c0", b"c1", b"c2"]
        assert [record.value for record in started.records("payments")] == [b"c0", b"c1", b"lost", b"c2"]
        (offset,) = started.group("theirs").offsets.values()
        assert offset.offset == 1
