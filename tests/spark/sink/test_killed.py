"""A member and its Spark are killed (kill -9) at any moment of storing and compacting; each row is stored once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark import ParquetByRange
from asyncgroup.testing import KafkaServer

RECORDS = 20_000
KILLS = 4


class MemberProcess:
    """A member in another process; `stored` counts its batches."""

    def __init__(self, server: KafkaServer, path: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.spark.sink.killed_member",
            server.bootstrap_servers,
            str(path),
        ]
        root = Path(__file__).parents[3]
        self._process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        self._changed = threading.Condition()
        self.stored = 0
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.stored += line.startswith("stored")
                self._changed.notify_all()

    def wait_stored(self, batches: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.stored >= batches, timeout=240)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._reading.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def produce(server: KafkaServer) -> None:
    async def work(cluster: EmbeddedCluster) -> None:
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                await producer.enqueue("numbers", b"%d" % number, partition=number % 2)

    server.call(work, timeout=120)


def wait_committed(server: KafkaServer) -> None:
    for _ in range(2_400):
        if sum(committed.offset for committed in server.group("killed").offsets.values()) == RECORDS:
            return
        threading.Event().wait(0.1)
    pytest.fail(f"not all is committed: {server.group('killed')}")


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_member_is_killed_repeatedly(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    rng = random.Random(20260101)
    kafka_server.create_topic("numbers", 2)
    produce(kafka_server)
    for kill in range(KILLS):
        member = MemberProcess(kafka_server, tmp_path)
        member.wait_stored(rng.randint(1, 4))
        threading.Event().wait(rng.uniform(0.0, 1.0))  # any moment of the next batch
        member.kill()
        seen = ParquetByRange.read(spark, str(tmp_path))
        assert seen.count() == seen.select("partition", "offset").distinct().count(), f"after kill {kill}"
    member = MemberProcess(kafka_server, tmp_path)
    try:
        wait_committed(kafka_server)
    finally:
        member.kill()
    seen = ParquetByRange.read(spark, str(tmp_path))
    assert seen.count() == seen.select("partition", "offset").distinct().count() == RECORDS
    store = ParquetByRange(spark, tmp_path)
    store.compact()
    store.vacuum(stale_after=0.0)
    assert ParquetByRange.read(spark, tmp_path).count() == RECORDS
    assert not list(tmp_path.glob("_staging/*"))
