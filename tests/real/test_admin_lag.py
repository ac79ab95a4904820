"""Admin on a real Kafka: offsets of partitions beside kafka-python's, and the lag of groups beside Kafka's own tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer, ProducerConfig, TopicPartition, WorkQueue
from asyncgroup.admin import AckWindowLag, Admin, GroupLag, NewTopic, OffsetSpec, PartitionLag
from asyncgroup.cluster.requests.budget import NODE_TIMEOUT
from asyncgroup.errors import BrokerError, UnsupportedVersionError
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.workqueue import Mode
from tests.interop.test_foreign_clients import in_thread
from tests.real.support import NEEDS_KAFKA_4, RunningKafka, resume_node

SPECS: Mapping[OffsetSpec, int] = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    0: 0,
    2500: 2500,
    10_000: 10_000,
    10_001: 10_001,
}
"""Each spec, and what kafka-python sends for it."""


@asynccontextmanager
async def filled(servers: str) -> AsyncIterator[tuple[Admin, list[TopicPartition]]]:
    """Create a topic; all partitions but the last one have ten records with the timestamps 1000, 2000, … ms.

    The log of partition 1 begins at offset 3, and partition 2 has an open transaction at its end.
    """
    topic = f"lag-{uuid4().hex[:8]}"
    tps = [TopicPartition(topic, number) for number in range(4)]
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 4})).raise_first()
        async with Producer(servers) as producer:
            for tp in tps[:-1]:
                for number in range(10):
                    await producer.send(topic, b"x", partition=tp.partition, timestamp=1000 * (number + 1))
        (await admin.delete_records({tps[1]: 3})).raise_first()
        config = ProducerConfig(transactional_id=topic)
        async with Producer(servers, config) as producer, producer.transaction():
            await producer.send(topic, b"x", partition=2, timestamp=5000)
            yield admin, tps


async def theirs(servers: str, tps: list[TopicPartition]) -> dict[tuple[OffsetSpec, str], dict[Any, Any]]:
    """Return what kafka-python lists for each spec and isolation level."""

    def run() -> Any:
        from kafka.admin import KafkaAdminClient
        from kafka.protocol.consumer import IsolationLevel

        admin = KafkaAdminClient(bootstrap_servers=servers)
        try:
            return {
                (spec, level.name.lower()): admin.list_partition_offsets(
                    dict.fromkeys(tps, timestamp), isolation_level=level
                )
                for spec, timestamp in SPECS.items()
                for level in IsolationLevel
            }
        finally:
            admin.close()

    found: dict[tuple[OffsetSpec, str], dict[Any, Any]] = await in_thread(run)
    return found


async def compare_offsets(servers: str) -> None:
    async with filled(servers) as (admin, tps):
        others = await theirs(servers, tps)
        assert len(others) == 2 * len(SPECS)
        for (spec, level), other in others.items():
            found = await admin.list_offsets(dict.fromkeys(tps, spec), isolation_level=level)  # type: ignore[arg-type]
            for tp, mine in found.raise_first().items():
                numbers = [None if number in (-1, None) else number for number in other[tp]]
                assert [mine.offset, mine.timestamp, mine.leader_epoch] == numbers, (spec, level, tp)
        ends = (await admin.list_offsets(dict.fromkeys(tps, "latest"))).raise_first()
        assert [ends[tp].offset for tp in tps] == [10, 10, 11, 0]
        stable = await admin.list_offsets({tps[2]: "latest"}, isolation_level="read_committed")
        assert stable.raise_first()[tps[2]].offset == 10
        missing = TopicPartition(tps[0].topic, 9)
        error = (await admin.list_offsets({missing: "latest", tps[0]: "latest"}))[missing]
        assert isinstance(error, BrokerError)
        assert error.name == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_offsets_of_partitions(apache_kafka: RunningKafka) -> None:
    await compare_offsets(apache_kafka.bootstrap_servers)


@pytest.mark.full
async def test_offsets_of_partitions_of_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await compare_offsets(kafka_39.bootstrap_servers)
    async with filled(kafka_39.bootstrap_servers) as (admin, tps):
        found = await admin.list_offsets(dict.fromkeys(tps, "earliest-pending-upload"))
        for tp, error in found.items():
            assert isinstance(error, UnsupportedVersionError)
            assert str(error).startswith(f"offset of {tp}: ")


# --- lag --------------------------------------------------------------------------------------------------------------


def shown(number: int | None) -> str:
    return "-" if number is None else str(number)


async def tool_rows(kafka: ApacheKafka, group: str) -> dict[TopicPartition, list[str]]:
    """Return the columns CURRENT-OFFSET, LOG-END-OFFSET, LAG, CONSUMER-ID, HOST, CLIENT-ID of Kafka's own tool."""
    output = await asyncio.to_thread(
        kafka.run_tool,
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group),
    )
    rows = [line.split() for line in output.splitlines() if line.startswith(f"{group} ")]
    return {TopicPartition(topic, int(number)): columns for _, topic, number, *columns in rows}


def row(each: PartitionLag) -> list[str]:
    """Return the columns of Kafka's tool, which counts what is lost, and what an ack window has done, as lag."""
    done = 0 if each.window is None else each.window.acked_above
    lag = None if each.lag is None else each.lag + (each.lost or 0) + done
    numbers = [shown(each.committed_offset), shown(each.log_end), shown(lag)]
    return [*numbers, each.member_id or "-", each.host or "-", each.client_id or "-"]


async def compared(kafka: ApacheKafka, admin: Admin, group: str) -> GroupLag:
    """Return the lag of a group, after a comparison with Kafka's own tool."""
    found = (await admin.lag([group])).raise_first()[group]
    assert {tp: row(each) for tp, each in found.partitions.items()} == await tool_rows(kafka, group)
    return found


async def compare_lag(kafka: ApacheKafka, protocol: str) -> None:
    servers = kafka.bootstrap_servers
    async with filled(servers) as (admin, tps):
        group = tps[0].topic
        (await admin.alter_group_offsets(group, {tps[0]: 4, tps[1]: 1, tps[2]: 11})).raise_first()
        found = await compared(kafka, admin, group)
        assert [each.lag for each in found.partitions.values()] == [6, 7, 0]
        assert found.lost_sum == 2
        committed = await admin.lag([group], isolation_level="read_committed")
        last = committed.raise_first()[group].partitions[tps[2]]
        assert (last.log_end, last.lag, last.is_beyond_log_end) == (10, 0, True)

        joined = asyncio.Event()
        claims: set[int] = set()

        async def wait(_: Any, claim: Any) -> None:
            claims.add(claim.partition)
            if len(claims) == len(tps):
                joined.set()
            await claim.wait_ended()

        config = ConsumerConfig(group_protocol=protocol, client_id="reader", auto_offset_reset="earliest")  # type: ignore[arg-type]
        async with ConsumerGroup(servers, group, config) as consumers, asyncio.TaskGroup() as tasks:
            tasks.create_task(consumers.run(group, wait))
            await joined.wait()
            found = await compared(kafka, admin, group)
            assert (found.group.group_type, found.group.state) == (protocol, "Stable")
            assert found.without_commit == (tps[3],)
            assert {each.client_id for each in found.partitions.values()} == {"reader"}
            await consumers.aclose()


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_the_lag_of_a_group(kafka_to_break: ApacheKafka, protocol: str) -> None:
    await compare_lag(kafka_to_break, protocol)


@pytest.mark.full
async def test_the_lag_of_a_group_of_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await compare_lag(kafka_39, "classic")


@pytest.mark.full
async def test_the_lag_of_a_work_queue(kafka_to_break: ApacheKafka) -> None:
    servers = kafka_to_break.bootstrap_servers
    group = f"queue-{uuid4().hex[:8]}"
    tp = TopicPartition(group, 0)
    async with Admin(servers) as admin, Producer(servers) as producer:
        (await admin.create_topics({group: 1})).raise_first()
        for _ in range(10):
            await producer.send(group, b"x")
        options: dict[str, Any] = {
            "initial_position": "earliest",
            "mode": Mode.SHARED,
            "nack_backoff": 1000.0,
        }
        async with WorkQueue(servers, group, group, **options) as queue:
            deliveries = [await queue.receive() for _ in range(6)]
            deliveries[3].nack()
            deliveries[0].ack()
            deliveries[2].ack()
            await deliveries[5].ack(durable=True)
            each = (await compared(kafka_to_break, admin, group)).partitions[tp]
        assert (each.committed_offset, each.lag) == (1, 7)
        assert each.window == AckWindowLag(acked_above=2, open=3, failed=1, end=6, beyond=4)


@pytest.mark.full
@NEEDS_KAFKA_4
async def test_a_share_group_is_named(kafka_to_break: ApacheKafka) -> None:
    group = f"share-{uuid4().hex[:8]}"
    async with Admin(kafka_to_break.bootstrap_servers) as admin:
        (await admin.create_topics({group: 1})).raise_first()
        await asyncio.to_thread(
            kafka_to_break.run_tool,
            "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
            *("--bootstrap-server", kafka_to_break.bootstrap_servers, "--topic", group),
            *("--group", group, "--timeout-ms", "2000"),
        )
        listed = {each.group_id: each.group_type for each in (await admin.list_groups()).raise_first()}
        assert listed[group] == "share"
        error = (await admin.lag([group]))[group]
        assert isinstance(error, BrokerError)
        assert f"lag of group '{group}': GROUP_ID_NOT_FOUND (69): it is a share group" in str(error)


@pytest.mark.full
async def test_a_frozen_node_is_an_error_of_its_own(apache_kafka_3: ApacheKafka) -> None:
    """It is in the metadata for some more seconds: a list of groups, offsets and a lag name it, and have the rest."""
    topic = f"frozen-{uuid4().hex[:8]}"
    tps = [TopicPartition(topic, number) for number in range(3)]
    loop = asyncio.get_running_loop()
    async with Admin(apache_kafka_3.bootstrap_servers) as admin:
        made = await admin.create_topics({topic: NewTopic(assignments=[[1], [2], [3]])})
        made.raise_first()
        names = [f"{topic}-{number}" for number in range(9)]
        for name in names:
            (await admin.alter_group_offsets(name, dict.fromkeys(tps, 0))).raise_first()
        found, _ = await admin._client.coordinators.locate_each(names)
        group = next(name for name, address in found.items() if address.node_id != 3)
        apache_kafka_3.suspend(3)
        try:
            begun = loop.time()
            listed = await admin.list_groups()
            assert loop.time() - begun < NODE_TIMEOUT + 2
            assert list(listed.errors) == [3]
            assert group in {each.group_id for each in listed.groups}
            offsets = await admin.list_offsets(dict.fromkeys(tps, "latest"))
            assert set(offsets.values_by_name) == set(tps[:2])
            lag = (await admin.lag([group])).raise_first()[group]
            assert list(lag.errors) == [tps[2]]
            assert [lag.partitions[tp].lag for tp in tps] == [0, 0, None]
        finally:
            await resume_node(apache_kafka_3, 3)
