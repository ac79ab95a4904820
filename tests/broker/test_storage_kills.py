"""A broker that is killed with SIGKILL in the middle of appends, again and again, under an idempotent producer.

Between death and resurrection the last segments get a piece of a batch at their end, as a write has that was cut short.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.model import Record
from asyncgroup.testing.reserved_ports import ReservedPorts
from tests.broker.batches import batch

TOPIC = "orders"
PARTITIONS = 3
SETTINGS = f"{TOPIC}:{PARTITIONS}:internal.segment.bytes=30000"


class Broker:
    """`asyncgroup broker --data-dir` as a process."""

    def __init__(self, directory: Path, port: int) -> None:
        arguments = ["--port", str(port), "--data-dir", str(directory), "--topic", SETTINGS]
        self._command = [sys.executable, "-m", "asyncgroup", "broker", *arguments]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "it ended before it was ready"

    def kill(self) -> None:
        self._process.kill()
        self._end(-signal.SIGKILL)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._end(0)

    def _end(self, code: int) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert self._process.wait(20) == code


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


@contextmanager
def free_port() -> Iterator[int]:
    ports = ReservedPorts(1)
    try:
        yield ports.numbers[0]
    finally:
        ports.close()


def tear(directory: Path, rng: random.Random) -> None:
    """Some of the last segments end with a piece of a batch."""
    for number in range(PARTITIONS):
        (partition,) = directory.glob(f"topics/{TOPIC}.*/{number}")
        if rng.random() < 0.7:
            with max(partition.glob("*.log")).open("ab") as file:
                data = batch(rng.randbytes(200))
                file.write(data[: rng.randrange(1, len(data))])


async def read(directory: Path) -> list[Record]:
    async with EmbeddedCluster(data_dir=directory) as cluster:
        assert len(cluster.topic(TOPIC).partitions[0].log.segments) > 1
        return cluster.records(TOPIC)


def killed(directory: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    with free_port() as port:
        broker, writer = Broker(directory, port), Writer(port)
        try:
            for _ in range(times):
                writer.write_until(len(writer.acknowledged) + rng.randrange(1, 1500))
                broker.kill()
                tear(directory, rng)
                broker.start()
            writer.write_until(len(writer.acknowledged) + 100)
            writer.finish()
        finally:
            broker.stop()
    found = asyncio.run(read(directory))
    for number in range(PARTITIONS):
        offsets = [record.offset for record in found if record.partition == number]
        assert offsets == list(range(len(offsets)))
    at = {(record.partition, record.offset): record.value for record in found}
    assert at == writer.acknowledged, "all that was acknowledged, where it was said to be, and each once"


def test_a_broker_that_is_killed_loses_nothing(tmp_path):
    killed(tmp_path, 3, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_broker_that_is_killed_a_hundred_times_loses_nothing(tmp_path):
    killed(tmp_path, 100, seed=2)
