"""A broker that is killed with SIGKILL in the middle of appends, again and again, under idempotent and transactional
producers.
"""

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
from tests.broker.killed_broker import PARTITIONS, TOPIC, Broker, broker


class Writer:
    """Writes values 0, 1, 2 …, and knows where those went that were acknowledged."""

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
        """Keep a few hundred records under way until so many were acknowledged."""
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
        place = message.partition(), message.offset()
        value = message.value()
        if error is not None or value is None or None in place:
            self.failed.append(error)
        else:
            self.acknowledged[place] = value


async def read(directory: Path) -> list[Record]:
    async with EmbeddedCluster(data_dir=directory) as cluster:
        assert len(cluster.topic(TOPIC).partitions[0].log.segments) > 1
        return cluster.records(TOPIC)


def killed(directory: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    with broker(directory) as place:
        writer = Writer(place.port)
        for _ in range(times):
            writer.write_until(len(writer.acknowledged) + rng.randrange(1, 1500))
            place.kill_and_start(rng)
        writer.write_until(len(writer.acknowledged) + 100)
        writer.finish()
    found = asyncio.run(read(directory))
    for number in range(PARTITIONS):
        offsets = [record.offset for record in found if record.partition == number]
        assert offsets == list(range(len(offsets)))
    at = {(record.partition, record.offset): record.value for record in found}
    assert at == writer.acknowledged, "all that was acknowledged, where it was said to be, and each once"


@pytest.mark.timeout(90)
def test_a_broker_that_is_killed_loses_nothing(tmp_path):
    killed(tmp_path, 3, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_broker_that_is_killed_a_hundred_times_loses_nothing(tmp_path):
    killed(tmp_path, 100, seed=2)


# -- transactions --------------------------------------------------------------------------------------------


class TransactionalWriter:
    """Each transaction writes its number to every partition, and commits it as an offset of group g."""

    def __init__(self, port: int) -> None:
        self._servers = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        self._group = Consumer({**self._servers, "group.id": "g"})
        self.number = 0
        self.committed: list[int] = []
        self.doubtful: list[int] = []
        self._begin_life()

    def _begin_life(self) -> None:
        settings = {**self._servers, "transactional.id": "tx", "linger.ms": 0, "retry.backoff.ms": 20}
        # librdkafka's rebootstrap leaves it with a group coordinator that it has forgotten: the next request waits for ever
        settings["metadata.recovery.strategy"] = "none"
        self._producer = Producer({**settings, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100})
        self._producer.init_transactions(60)

    def write(self) -> None:
        """A transaction; one that failed is aborted, or gone with its producer."""
        self.number += 1
        try:
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"%d" % self.number, partition=partition)
            place = TopicPartition(TOPIC, 0, self.number)
            self._producer.send_offsets_to_transaction([place], self._group.consumer_group_metadata(), 60)
            self._producer.commit_transaction(60)
        except KafkaException:
            self.doubtful.append(self.number)
            self._begin_life()
        else:
            self.committed.append(self.number)

    def close(self) -> None:
        self._group.close()


async def read_committed(directory: Path, end: int) -> list[list[int]]:
    """The numbers in each partition up to `end`, and as last one the committed offset."""
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


def killed_in_transactions(directory: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    with broker(directory) as place, ThreadPoolExecutor(1) as killer:
        writer = TransactionalWriter(place.port)
        for _ in range(times):
            killing = killer.submit(kill_later, place, rng)
            while not killing.done():
                writer.write()
            killing.result()
        while not writer.committed or writer.committed[-1] != writer.number:
            writer.write()
        writer.close()
    end = writer.committed[-1]
    *partitions, offsets = asyncio.run(read_committed(directory, end))
    assert offsets == [end]
    for values in partitions:
        assert values == partitions[0], "a transaction is in all of them or in none"
        assert values == sorted(set(values))
        assert set(writer.committed) <= set(values) <= {*writer.committed, *writer.doubtful}


def kill_later(place: Broker, rng: random.Random) -> None:
    time.sleep(rng.uniform(0.01, 0.4))
    place.kill_and_start(rng)


@pytest.mark.timeout(90)
def test_a_broker_that_is_killed_halves_no_transaction(tmp_path):
    killed_in_transactions(tmp_path, 2, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_broker_that_is_killed_fifty_times_halves_no_transaction(tmp_path):
    killed_in_transactions(tmp_path, 50, seed=2)
