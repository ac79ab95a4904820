"""A broker that is repeatedly killed with SIGKILL during appends of idempotent and transactional producers."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from asyncgroup import Consumer as AsyncConsumer, ConsumerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.model import Record
from tests.broker.broker_process import PARTITIONS, TOPIC, BrokerProcess, broker_process
from tests.broker.internals import log_of


class Writer:
    """Writes the values 0, 1, 2 …, and records partition and offset of the acknowledged ones."""

    def __init__(self, port: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._written = 0
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[KafkaError] = []

    def write_until(self, acknowledged: int) -> None:
        """Keep 300 records in flight until `acknowledged` records are acknowledged."""
        while len(self.acknowledged) < acknowledged and not self.failed:
            while self._written - len(self.acknowledged) < 300:
                value = b"%d " % self._written * (1 + self._written % 40)
                self._producer.produce(
                    TOPIC, value, partition=self._written % PARTITIONS, on_delivery=self._delivered
                )
                self._written += 1
            self._producer.poll(0.05)

    def finish(self) -> None:
        assert self._producer.flush(60) == 0
        assert self.failed == []
        assert len(self.acknowledged) == self._written

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        position = message.partition(), message.offset()
        value = message.value()
        if error is not None or value is None or None in position:
            self.failed.append(error)
        else:
            self.acknowledged[position] = value


async def read(directory: Path) -> list[Record]:
    async with EmbeddedCluster(data_dir=directory) as cluster:
        assert len(log_of(cluster, TOPIC, 0).segments) > 1
        return cluster.records(TOPIC)


def often(few: int, many: int) -> pytest.MarkDecorator:
    """Kill the broker a few times; many times in the soak test."""
    long = [pytest.mark.soak, pytest.mark.timeout(1200)]
    return pytest.mark.parametrize(
        "times", [pytest.param(few, marks=pytest.mark.timeout(90)), pytest.param(many, marks=long)]
    )


@often(3, 100)
def test_a_killed_broker_loses_no_acknowledged_record(tmp_path: Path, times: int) -> None:
    rng = random.Random(times)
    with broker_process(tmp_path) as process:
        writer = Writer(process.port)
        for _ in range(times):
            writer.write_until(len(writer.acknowledged) + rng.randrange(1, 1500))
            process.kill_and_start(rng)
        writer.write_until(len(writer.acknowledged) + 100)
        writer.finish()
    found = asyncio.run(read(tmp_path))
    for number in range(PARTITIONS):
        offsets = [record.offset for record in found if record.partition == number]
        assert offsets == list(range(len(offsets)))
    at = {(record.partition, record.offset): record.value for record in found}
    assert at == writer.acknowledged, "each acknowledged record exists once, at the acknowledged offset"


# -- transactions --------------------------------------------------------------------------------------------


class TransactionalWriter:
    """Writes transactions: each appends its number to every partition, and commits it as an offset of group g."""

    def __init__(self, port: int) -> None:
        self._servers = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        self._group = Consumer({**self._servers, "group.id": "g"})
        self.number = 0
        self.committed: list[int] = []
        self.unknown: list[int] = []
        self._new_producer()

    def _new_producer(self) -> None:
        settings = {**self._servers, "transactional.id": "tx", "linger.ms": 0, "retry.backoff.ms": 20}
        # After a rebootstrap librdkafka has forgotten the group coordinator, and the next request waits forever.
        settings["metadata.recovery.strategy"] = "none"
        self._producer = Producer({**settings, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100})
        self._producer.init_transactions(60)

    def write(self) -> None:
        """Run a transaction. After a failure a new producer takes over, and the outcome is unknown."""
        self.number += 1
        try:
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"%d" % self.number, partition=partition)
            offset = TopicPartition(TOPIC, 0, self.number)
            self._producer.send_offsets_to_transaction([offset], self._group.consumer_group_metadata(), 60)
            self._producer.commit_transaction(60)
        except KafkaException:
            self.unknown.append(self.number)
            self._new_producer()
        else:
            self.committed.append(self.number)

    def close(self) -> None:
        self._group.close()


async def read_committed(directory: Path, end: int) -> list[list[int]]:
    """Return the numbers in each partition up to `end`, followed by the committed offsets."""
    found: list[list[int]] = []
    async with EmbeddedCluster(data_dir=directory) as cluster:
        config = ConsumerConfig(isolation_level="read_committed")
        async with AsyncConsumer(cluster.bootstrap_servers, config) as reader:
            for number in range(PARTITIONS):
                values: list[int] = []
                async for record in await reader.partition(TOPIC, number, 0):
                    values.append(int(record.value or b""))
                    if values[-1] == end:
                        break
                found.append(values)
        return [*found, [committed.offset for committed in cluster.group("g").offsets.values()]]


@pytest.mark.full
@often(2, 50)
def test_transactions_stay_atomic_on_a_killed_broker_process(tmp_path: Path, times: int) -> None:
    rng = random.Random(times)
    with broker_process(tmp_path) as process, ThreadPoolExecutor(1) as killer:
        writer = TransactionalWriter(process.port)
        for _ in range(times):
            killing = killer.submit(kill_later, process, rng)
            while not killing.done():
                writer.write()
            killing.result()
        while not writer.committed or writer.committed[-1] != writer.number:
            writer.write()
        writer.close()
    end = writer.committed[-1]
    *partitions, offsets = asyncio.run(read_committed(tmp_path, end))
    assert offsets == [end]
    for values in partitions:
        assert values == partitions[0], "a transaction is in all partitions or in none"
        assert values == sorted(set(values))
        assert set(writer.committed) <= set(values) <= {*writer.committed, *writer.unknown}


def kill_later(process: BrokerProcess, rng: random.Random) -> None:
    time.sleep(rng.uniform(0.01, 0.4))
    process.kill_and_start(rng)
