"""Consumers with `group.protocol=consumer` (KIP-848) on the embedded cluster: those of librdkafka and Java."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.interop.java_tools import JavaTools
from tests.interop.test_java_tools import TOPIC, consume, produce, started

PARTITIONS = 6
WAIT = 40.0
GROUP = "consumers"


class LibrdkafkaMember:
    """A member in a thread of its own that polls and commits until it is stopped."""

    def __init__(self, servers: str, *topics: str, **options: Any) -> None:
        self.seen: list[bytes] = []
        self.assigned: set[int] = set()
        self.errors: list[str] = []
        self._topics = topics or ("orders",)
        self._options = {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            **options,
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(self._options)
        consumer.subscribe(
            list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not self._stop.is_set():
            message = consumer.poll(0.05)
            if message is None:
                continue
            if message.error():
                self.errors.append(str(message.error()))
            else:
                self.seen.append(message.value())
        consumer.close()

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self.assigned |= {one.partition for one in partitions}
        consumer.incremental_assign(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self.assigned -= {one.partition for one in partitions}
        consumer.incremental_unassign(partitions)

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, WAIT)
        assert not self._thread.is_alive()


async def until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not is_done():
            await asyncio.sleep(0.05)


async def test_members_share_a_topic_join_leave_and_resume() -> None:
    async with EmbeddedCluster(
        3,
        topics={"orders": PARTITIONS},
        group_consumer_heartbeat_interval=0.2,
        group_consumer_assignment_interval=0.1,
    ) as cluster:
        servers = cluster.bootstrap_servers

        def group() -> Any:
            return cluster.group(GROUP)

        def is_shared_by(*members: LibrdkafkaMember) -> bool:
            shares = [member.assigned for member in members]
            whole = sorted(partition for share in shares for partition in share)
            even = max(map(len, shares)) - min(map(len, shares)) <= 1
            return group().state == "Stable" and even and whole == list(range(PARTITIONS))

        ann = LibrdkafkaMember(servers)
        await until(lambda: is_shared_by(ann))
        bob = LibrdkafkaMember(servers)
        await until(lambda: is_shared_by(ann, bob))
        for number in range(60):
            cluster.produce("orders", b"first-%d" % number, partition=number % PARTITIONS)
        await until(lambda: len({*ann.seen, *bob.seen}) == 60)
        assert len(ann.seen) == len(bob.seen) == 30
        cluster.move_coordinator(GROUP, 1 + cluster.coordinator(GROUP) % 3)
        cat = LibrdkafkaMember(servers, **{"group.instance.id": "cat"})
        await until(lambda: is_shared_by(ann, bob, cat))
        await bob.stop()
        await until(lambda: is_shared_by(ann, cat))
        await ann.stop()
        await until(lambda: is_shared_by(cat))
        for number in range(60):
            cluster.produce("orders", b"second-%d" % number, partition=number % PARTITIONS)
        await until(lambda: len([v for v in cat.seen if v.startswith(b"second")]) == 60)
        await cat.stop()
        assert [value for value in cat.seen if value.startswith(b"first")] == []
        assert sum(offset.offset for offset in group().offsets.values()) == 120
        assert not [*ann.errors, *bob.errors, *cat.errors]


@pytest.mark.full
async def test_librdkafka_subscribes_by_patterns() -> None:
    """It sends `(^orders.*)|(^x[[:alpha:]]+)`."""
    topics = ("my-orders", "orders", "orders-eu", "x1", "xa")
    async with EmbeddedCluster(
        topics=dict.fromkeys(topics, 1), group_consumer_heartbeat_interval=0.2
    ) as cluster:
        for topic in topics:
            cluster.produce(topic, topic.encode())
        member = LibrdkafkaMember(cluster.bootstrap_servers, "^orders.*", "^x[[:alpha:]]+")
        await until(lambda: len(member.seen) == 3 or member.errors != [])
        await member.stop()
        assert (sorted(member.seen), member.errors) == ([b"orders", b"orders-eu", b"xa"], [])
        assert sorted(cluster.group(GROUP).offsets) == [("orders", 0), ("orders-eu", 0), ("xa", 0)]


PROTOCOL = ("--command-property", "group.protocol=consumer")


async def test_javas_consumer_and_its_tools(java_tools: JavaTools) -> None:
    """The console consumer reads all records; the admin tool lists, describes and deletes the group."""
    async with started(java_tools) as run:
        run.cluster.create_topic(TOPIC, 2)
        await produce(run, 0, 20)
        await consume(run, 20, "--group", "javas", "--from-beginning", *PROTOCOL)
        assert run.cluster.group("javas").state == "Empty"
        assert run.cluster.group("javas").protocol == "uniform"
        listed = (await run.checked("kafka-consumer-groups", "--list", "--type", "consumer")).table()
        assert listed == [{"GROUP": "javas", "TYPE": "Consumer"}]
        member = LibrdkafkaMember(
            run.cluster.bootstrap_servers, TOPIC, **{"group.id": "javas", "client.id": "ann"}
        )
        await until(lambda: run.cluster.group("javas").state == "Stable" and len(member.assigned) == 2)
        about = ("--describe", "--group", "javas")
        (found,) = (await run.checked("kafka-consumer-groups", *about, "--members")).table()
        assert (found["CLIENT-ID"], found["#PARTITIONS"]) == ("ann", "2")
        state = (await run.checked("kafka-consumer-groups", *about, "--state")).text
        assert "uniform" in state
        assert "Stable" in state
        offsets = (await run.checked("kafka-consumer-groups", *about)).table()
        assert sum(int(row["CURRENT-OFFSET"]) for row in offsets) == 20
        await member.stop()
        removed = await run.checked("kafka-consumer-groups", "--group", "javas", "--delete")
        assert "was successful" in removed.text
        assert run.cluster.groups == []
