"""Clients of other libraries against the embedded cluster: produce, consume in a group, commit, resume.

aiokafka runs on the test's loop. confluent-kafka and kafka-python block, so they run in threads while the cluster
runs on the loop.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster

RECORDS = 300
PARTITIONS = 4
WAIT = 30.0
"""Seconds after which a blocking call of a client gives up."""

KAFKA_PYTHON_POLL = 3
"""Seconds that a poll of kafka-python may take. Version 3.0 hangs forever, without heartbeats, if a poll times out between
the SyncGroup response and its processing; on a loaded machine 0.1 s is not enough.
"""


def wanted() -> set[bytes]:
    return {b"value-%d" % number for number in range(RECORDS)}


@asynccontextmanager
async def cluster(**options: Any):
    async with EmbeddedCluster(nodes=3, **options) as started:
        started.create_topic("orders", PARTITIONS)
        yield started


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run a blocking client in a thread, without its own warnings.

    Now and then a socket was left open, most likely by kafka-python (`kafka.net.inet`); if it were not collected here,
    the warning would fail a later test.
    """

    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*args)
            gc.collect()
            return result

    return await asyncio.to_thread(quiet)


def committed(started: EmbeddedCluster, group: str) -> int:
    """Return the number of records below the group's committed offsets."""
    return sum(offset.offset for offset in started.group(group).offsets.values())


def check_produced(started: EmbeddedCluster) -> None:
    records = started.records("orders")
    assert {record.value for record in records} == wanted()
    assert len(records) == RECORDS
    assert all(record.key == b"key-%d" % (int(record.value.split(b"-")[1]) % 20) for record in records)


# -- aiokafka ------------------------------------------------------------------------------------------------


async def aiokafka_produce(servers: str, **options: Any) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=servers, **options) as producer:
        for number in range(RECORDS):
            await producer.send("orders", b"value-%d" % number, key=b"key-%d" % (number % 20))


@pytest.mark.parametrize(
    "options",
    [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}, {"compression_type": "gzip"}],
    ids=str,
)
async def test_aiokafka_produces(options):
    async with cluster() as started:
        await aiokafka_produce(started.bootstrap_servers, **options)
        if options.get("acks") == 0:
            # The producer does not know when the last record is appended.
            while len(started.records("orders")) < RECORDS:
                await asyncio.sleep(0.01)
        check_produced(started)


async def test_aiokafka_consumes_in_a_group_commits_and_resumes():
    from aiokafka import AIOKafkaConsumer

    async with cluster() as started:
        await aiokafka_produce(started.bootstrap_servers)

        def member(name: str) -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                "orders",
                bootstrap_servers=started.bootstrap_servers,
                group_id="aio",
                client_id=name,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
            )

        first, second = member("first"), member("second")
        await asyncio.gather(first.start(), second.start())
        try:
            seen: list[bytes] = []
            while len(seen) < RECORDS:
                for consumer in (first, second):
                    batches = await consumer.getmany(timeout_ms=50)
                    seen += [record.value for records in batches.values() for record in records]
            assert len(seen) == RECORDS
            assert set(seen) == wanted()
            await first.commit()
            await second.commit()
            view = started.group("aio")
            assert view.state == "Stable"
            assert {member.client_id for member in view.members.values()} == {"first", "second"}
            assert sorted(len(member.assignment["orders"]) for member in view.members.values()) == [2, 2]
            assert committed(started, "aio") == RECORDS
        finally:
            await asyncio.gather(first.stop(), second.stop())
        assert started.group("aio").state == "Empty"

        await aiokafka_produce(started.bootstrap_servers)
        late, again = member("late"), list[bytes]()
        async with late:
            while len(again) < RECORDS:
                batches = await late.getmany(timeout_ms=50)
                again += [record.value for records in batches.values() for record in records]
            await late.commit()
        assert sorted(again) == sorted(wanted()), "committed records are not read again"
        assert committed(started, "aio") == 2 * RECORDS


# -- confluent-kafka -----------------------------------------------------------------------------------------


def confluent_produce(servers: str, options: dict[str, Any]) -> None:
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **options})
    for number in range(RECORDS):
        producer.produce(
            "orders",
            b"value-%d" % number,
            key=b"key-%d" % (number % 20),
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )
    assert producer.flush(WAIT) == 0
    assert failed == []


def confluent_consume(servers: str, group: str, enough: int, **options: Any) -> tuple[list[bytes], list[Any]]:
    """Read `enough` records, commit and leave; return the values and the committed positions."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )
    try:
        consumer.subscribe(["orders"])
        seen: list[bytes] = []
        for _ in range(int(WAIT * 10)):
            for message in consumer.consume(500, timeout=0.1):
                assert message.error() is None, message.error()
                seen.append(message.value())
            if len(seen) >= enough:
                break
        return seen, consumer.commit(asynchronous=False)
    finally:
        consumer.close()


async def test_confluent_consumes_in_a_group_commits_and_resumes():
    async with cluster() as started:
        await in_thread(confluent_produce, started.bootstrap_servers, {})
        seen, positions = await in_thread(confluent_consume, started.bootstrap_servers, "cfl", RECORDS)
        assert len(seen) == RECORDS
        assert set(seen) == wanted()
        assert sum(position.offset for position in positions) == RECORDS
        assert committed(started, "cfl") == RECORDS
        assert started.group("cfl").state == "Empty"

        await in_thread(confluent_produce, started.bootstrap_servers, {})
        again, _ = await in_thread(confluent_consume, started.bootstrap_servers, "cfl", RECORDS)
        assert len(again) == RECORDS
        assert committed(started, "cfl") == 2 * RECORDS


async def test_confluent_static_member_comes_back_without_a_rebalance():
    async with cluster() as started:
        await in_thread(confluent_produce, started.bootstrap_servers, {})
        options = {"group.instance.id": "one"}
        await in_thread(lambda: confluent_consume(started.bootstrap_servers, "static", RECORDS, **options))
        view = started.group("static")
        assert view.state == "Stable"  # a static member does not leave when it closes
        assert [member.group_instance_id for member in view.members.values()] == ["one"]
        await in_thread(confluent_produce, started.bootstrap_servers, {})
        await in_thread(lambda: confluent_consume(started.bootstrap_servers, "static", RECORDS, **options))
        assert started.group("static").generation == view.generation
        assert committed(started, "static") == 2 * RECORDS


# -- kafka-python --------------------------------------------------------------------------------------------


def kafka_python_produce(servers: str, options: dict[str, Any]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers.split(","), **options)
    try:
        futures = [
            producer.send("orders", value=b"value-%d" % number, key=b"key-%d" % (number % 20))
            for number in range(RECORDS)
        ]
        producer.flush(timeout=WAIT)
        for future in futures:
            future.get(timeout=WAIT)
    finally:
        producer.close(timeout=WAIT)


def kafka_python_consume(servers: str, group: str, enough: int) -> list[bytes]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=servers.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        seen: list[bytes] = []
        for _ in range(int(WAIT / KAFKA_PYTHON_POLL)):
            for records in consumer.poll(timeout_ms=1000 * KAFKA_PYTHON_POLL).values():
                seen += [record.value for record in records]
            if len(seen) >= enough:
                break
        consumer.commit()
        return seen
    finally:
        consumer.close()


async def test_kafka_python_consumes_in_a_group_commits_and_resumes():
    async with cluster() as started:
        await in_thread(kafka_python_produce, started.bootstrap_servers, {})
        seen = await in_thread(kafka_python_consume, started.bootstrap_servers, "kpy", RECORDS)
        assert len(seen) == RECORDS
        assert set(seen) == wanted()
        assert committed(started, "kpy") == RECORDS
        await in_thread(kafka_python_produce, started.bootstrap_servers, {})
        again = await in_thread(kafka_python_consume, started.bootstrap_servers, "kpy", RECORDS)
        assert len(again) == RECORDS
        assert committed(started, "kpy") == 2 * RECORDS
        assert started.group("kpy").state == "Empty"


# -- together ------------------------------------------------------------------------------------------------


class Shared:
    """Shared state of the members of the mixed group: all of them commit before the first one leaves."""

    def __init__(self) -> None:
        self.seen: dict[str, list[bytes]] = {"aiokafka": [], "confluent": [], "kafka-python": []}
        self.stop = threading.Event()
        self.committed = threading.Semaphore(0)
        self.leave = threading.Event()

    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def done(self) -> None:
        """Report that a member has committed, and wait for the others."""
        self.committed.release()
        self.leave.wait(WAIT)

    def wait_committed(self) -> None:
        for _ in self.seen:
            self.committed.acquire(timeout=WAIT)


@pytest.mark.full
async def test_three_libraries_share_one_group():
    """The group has a member of each library, all with the `range` assignor: every record is read once, some by each."""
    async with cluster() as started:
        shared, servers = Shared(), started.bootstrap_servers
        async with asyncio.timeout(2 * WAIT), asyncio.TaskGroup() as members:
            members.create_task(share_aiokafka(servers, shared))
            members.create_task(in_thread(share_confluent, servers, shared))
            members.create_task(in_thread(share_kafka_python, servers, shared))
            try:
                while not all_three_assigned(started):
                    await asyncio.sleep(0.05)
                await aiokafka_produce(servers)
                while shared.count() < RECORDS:
                    await asyncio.sleep(0.05)
                shared.stop.set()
                await in_thread(shared.wait_committed)
                assert committed(started, "mixed") == RECORDS
            finally:
                shared.stop.set()
                shared.leave.set()
        everything = [value for values in shared.seen.values() for value in values]
        assert sorted(everything) == sorted(wanted())
        assert all(shared.seen.values())


def all_three_assigned(started: EmbeddedCluster) -> bool:
    view = started.group("mixed")
    return view.state == "Stable" and len(view.members) == 3 and len(view.assignment) == PARTITIONS


async def share_aiokafka(servers: str, shared: Shared) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=servers,
        group_id="mixed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    async with consumer:
        while not shared.stop.is_set():
            batches = await consumer.getmany(timeout_ms=50)
            shared.seen["aiokafka"] += [record.value for records in batches.values() for record in records]
        await consumer.commit()
        await in_thread(shared.done)


def share_confluent(servers: str, shared: Shared) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "mixed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe(["orders"])
    while not shared.stop.is_set():
        messages = consumer.consume(500, timeout=0.05)
        shared.seen["confluent"] += [message.value() for message in messages if message.error() is None]
    consumer.commit(asynchronous=False)
    shared.done()
    consumer.close()


def share_kafka_python(servers: str, shared: Shared) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=servers.split(","),
        group_id="mixed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    while not shared.stop.is_set():
        for records in consumer.poll(timeout_ms=1000 * KAFKA_PYTHON_POLL).values():
            shared.seen["kafka-python"] += [record.value for record in records]
    consumer.commit()
    shared.done()
    consumer.close()


# -- both ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("produce", "options"),
    [
        (confluent_produce, {"acks": 1}),
        (confluent_produce, {"enable.idempotence": True}),
        (confluent_produce, {"compression.type": "lz4"}),
        (confluent_produce, {"compression.type": "zstd"}),
        (kafka_python_produce, {"acks": 1}),
        (kafka_python_produce, {"acks": "all"}),
        (kafka_python_produce, {"compression_type": "gzip"}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_records_of_other_producers(produce, options):
    async with cluster() as started:
        await in_thread(produce, started.bootstrap_servers, options)
        check_produced(started)
