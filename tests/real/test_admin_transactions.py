"""Admin on a real Kafka: transactions and producers, beside kafka-python's admin client and Kafka's own kafka-transactions.sh."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import BrokerError, ErrorCode, Producer, ProducerConfig, TopicPartition
from asyncgroup.admin import Admin, ConfigChanges, NewTopic
from asyncgroup.errors import TransportError
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from tests.broker.transactional import transactional
from tests.interop.test_foreign_clients import in_thread
from tests.real.support import RunningKafka, resume_node, until_shown
from tests.real.test_admin_brokers import by_kafka_python, name_of, raised_by_kafka_python
from tests.real.test_groups_taken_over import at

TOOL = "org.apache.kafka.tools.TransactionsCommand"
VERIFICATION = "transaction.partition.verification.enable"
HANGING = 10**15
"""Producer ids that no coordinator has given out."""


def unique() -> str:
    return f"admin-{uuid4().hex[:8]}"


@asynccontextmanager
async def transaction(servers: str, topic: str, name: str) -> AsyncIterator[None]:
    """Have an open transaction with a record in partition 0, committed at the end of the block."""
    async with Producer(servers, ProducerConfig(transactional_id=name)) as producer, producer.transaction():
        await producer.send(topic, b"x", partition=0)
        yield


async def test_a_transaction_is_listed_and_described(apache_kafka: RunningKafka) -> None:
    topic = unique()
    zero = TopicPartition(topic, 0)
    async with Admin(apache_kafka.bootstrap_servers) as admin:
        (await admin.create_topics({topic: NewTopic(1, 1)})).raise_first()
        async with transaction(apache_kafka.bootstrap_servers, topic, topic):
            listed = {each.transactional_id: each for each in (await admin.transactions.list()).raise_first()}
            assert listed[topic].state == "Ongoing"
            found = await admin.transactions.describe([topic, f"{topic}-none"])
            described = found.values_by_name[topic]
            assert (described.state, described.partitions) == ("Ongoing", (zero,))
            missing = found[f"{topic}-none"]
            assert isinstance(missing, BrokerError)
            assert missing.name == "TRANSACTIONAL_ID_NOT_FOUND"
            (producer,) = (await admin.transactions.producers([zero])).raise_first()[zero]
            assert producer.producer_id == described.producer_id == listed[topic].producer_id
            assert producer.current_transaction_start_offset == 0
            assert not (await admin.transactions.find_hanging(topics=[topic])).raise_first()

        async def at_its_end() -> tuple[str, Sequence[TopicPartition]]:
            (described,) = (await admin.transactions.describe([topic])).raise_first().values()
            return described.state, described.partitions

        # the coordinator writes the markers after its response
        await until_shown(at_its_end, ("CompleteCommit", ()))


# --- beside others --------------------------------------------------------------------------------------------------------


async def hang(kafka: ApacheKafka, tp: TopicPartition, producer_id: int) -> None:
    """Write a record of 1970 in a transaction that no coordinator knows; its leader must be node 1."""
    cls = m.ProduceRequest
    part = cls.PartitionProduceData(tp.partition, transactional(b"x", producer_id=producer_id, epoch=3))
    request = cls("tx", -1, 30_000, [cls.TopicProduceData(tp.topic, partition_data=[part])])
    async with asyncio.timeout(30), at(kafka, 1) as client:
        # until the node has stopped its verification: it answers before its configuration has changed. The logs learn of the
        # change after the ReplicaManager (`DynamicProducerStateManagerConfig` in Kafka): they refuse what it has not verified
        code, expected = -1, (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE)
        while code != 0:
            answer = await client.ask(request, 11)
            code = answer.responses[0].partition_responses[0].error_code
            assert code in expected


async def rows(kafka: ApacheKafka, *arguments: str) -> list[list[str]]:
    """Return the table that kafka-transactions.sh prints, without its header."""
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    printed = await asyncio.to_thread(kafka.run_tool, TOOL, *servers, *arguments)
    return [line.split() for line in printed.splitlines()[1:] if line.strip()]


def all_by_kafka_python(servers: str, topic: str) -> dict[str, Any]:
    from kafka import KafkaAdminClient
    from kafka.structs import TopicPartition as TheirPartition

    admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
    try:
        return {
            "listed": admin.list_transactions(),
            "described": admin.describe_transactions([topic]),
            "producers": admin.describe_producers([TheirPartition(topic, n) for n in (0, 1)]),
        }
    finally:
        admin.close()


def abort(admin: Any, tp: TopicPartition, producer_id: int, epoch: int) -> None:
    """Abort a transaction by kafka-python."""
    from kafka.admin import AbortTransactionSpec

    admin.abort_transaction(AbortTransactionSpec(tp, producer_id, epoch))


def number(value: int | None) -> str:
    return "-1" if value is None else str(value)


@pytest.mark.full
async def test_all_is_as_others_see_it(apache_kafka_3: ApacheKafka) -> None:
    await compare_transactions(apache_kafka_3, [1, 2])


@pytest.mark.full
async def test_all_is_as_others_see_it_on_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await compare_transactions(kafka_39, [1])


async def compare_transactions(kafka: ApacheKafka, nodes: list[int]) -> None:
    servers, topic = kafka.bootstrap_servers, unique()
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Admin(servers) as admin, transaction_of(admin, servers, topic, nodes):
        verifies = ConfigChanges(set={VERIFICATION: "false"})
        (await admin.alter_configs("broker", {1: verifies})).raise_first()
        try:
            await hang(kafka, one, HANGING)
        finally:
            (await admin.alter_configs("broker", {1: ConfigChanges(delete=[VERIFICATION])})).raise_first()

        async def ending() -> set[str]:
            """Return the transactions of other tests whose markers are being written: they change between two lists."""
            listed = (await admin.transactions.list(states=["PrepareCommit", "PrepareAbort"])).raise_first()
            return {each.transactional_id for each in listed}

        await until_shown(ending, set())
        theirs = await in_thread(all_by_kafka_python, servers, topic)
        ours = (await admin.transactions.list()).raise_first()
        assert {
            (node, each.transactional_id, each.producer_id, each.state.value)
            for node, found in theirs["listed"].items()
            for each in found
        } == {(each.coordinator, each.transactional_id, each.producer_id, each.state) for each in ours}
        described = (await admin.transactions.describe([topic])).raise_first()[topic]
        other = theirs["described"][topic]
        assert (other.coordinator_id, other.state.value, other.producer_id, other.producer_epoch) == (
            described.coordinator,
            described.state,
            described.producer_id,
            described.producer_epoch,
        )
        assert other.transaction_timeout_ms == described.timeout * 1000
        assert other.transaction_start_time_ms == described.start_timestamp
        assert {tuple(each) for each in other.topic_partitions} == set(described.partitions)
        producers = (await admin.transactions.producers([zero, one])).raise_first()
        for tp, found in theirs["producers"].items():
            assert [tuple(each) for each in sorted(found.active_producers)] == [
                (
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    int(number(each.coordinator_epoch)),
                    int(number(each.current_transaction_start_offset)),
                )
                for each in producers[TopicPartition(*tp)]
            ]

        await compare_partial_results(admin, servers, topic)
        found = (await admin.transactions.find_hanging(topics=[topic])).raise_first()
        tool = await rows(kafka, "find-hanging", "--topic", topic)
        assert [row[:7] for row in tool] == [
            [
                each.partition.topic,
                str(each.partition.partition),
                str(each.producer_id),
                str(each.producer_epoch),
                number(each.coordinator_epoch),
                str(each.start_offset),
                str(each.last_timestamp),
            ]
            for each in found
        ]
        assert [each.partition for each in found] == [one]

        (hanging,) = found
        with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
            await admin.transactions.abort(one, producer_id=HANGING, producer_epoch=2)
        raised, _ = await raised_by_kafka_python(servers, lambda their: abort(their, one, HANGING, 2))
        assert raised == "INVALID_PRODUCER_EPOCH"
        await admin.transactions.abort_at(hanging.partition, hanging.start_offset)
        assert not (await admin.transactions.find_hanging(topics=[topic])).raise_first()
        assert await rows(kafka, "find-hanging", "--topic", topic) == []


async def compare_partial_results(admin: Admin, servers: str, topic: str) -> None:
    """A name that exists and one that does not; kafka-python raises the error of the latter."""
    names, tps = [topic, f"{topic}-none"], [TopicPartition(topic, 0), TopicPartition(topic, 9)]
    described = await admin.transactions.describe(names)
    assert list(described.values_by_name) == [topic]
    raised, _ = await raised_by_kafka_python(servers, operator.methodcaller("describe_transactions", names))
    assert name_of(described[names[1]]) == raised == "TRANSACTIONAL_ID_NOT_FOUND"
    producers = await admin.transactions.producers(tps)
    assert list(producers.values_by_name) == tps[:1]
    raised, _ = await raised_by_kafka_python(servers, operator.methodcaller("describe_producers", tps))
    assert name_of(producers[tps[1]]) == raised == "UNKNOWN_TOPIC_OR_PARTITION"
    for ours, theirs in (
        ({"states": ["Ongoing"]}, {"state_filters": ["Ongoing"]}),
        ({"states": ["Empty"]}, {"state_filters": ["Empty"]}),
        ({"longer_than": 3600.0}, {"duration_filter_ms": 3_600_000}),
    ):
        listed = (await admin.transactions.list(**ours)).raise_first()  # type: ignore[arg-type]
        found = await by_kafka_python(servers, operator.methodcaller("list_transactions", **theirs))
        assert {each.transactional_id for each in listed} == {
            each.transactional_id for part in found.values() for each in part
        }
        assert (topic in {each.transactional_id for each in listed}) is (ours == {"states": ["Ongoing"]})


@asynccontextmanager
async def transaction_of(
    admin: Admin, servers: str, topic: str, nodes: Sequence[int] = (1, 2)
) -> AsyncIterator[None]:
    """Create a topic whose two partitions have replicas at these nodes; have an open transaction in partition 0 in the block."""
    (await admin.create_topics({topic: NewTopic(assignments=[nodes, nodes])})).raise_first()
    async with transaction(servers, topic, topic):
        yield


@pytest.mark.full
async def test_what_a_dead_node_coordinates_is_missing_and_said(apache_kafka_3: ApacheKafka) -> None:
    kafka, topic = apache_kafka_3, unique()
    async with Admin(kafka.bootstrap_servers, timeout=10.0) as admin:
        async with transaction_of(admin, kafka.bootstrap_servers, topic):
            (listed,) = [
                each
                for each in (await admin.transactions.list()).raise_first()
                if each.transactional_id == topic
            ]
        dead = listed.coordinator % 3 + 1
        await asyncio.to_thread(kafka.suspend, dead)  # it stays in the metadata until its session has expired
        try:
            found = await admin.transactions.list()
            assert list(found.errors) == [dead]
            assert isinstance(found.errors[dead], TransportError)
            assert topic in {each.transactional_id for each in found.transactions}
        finally:
            await resume_node(kafka, dead)
