"""Executors in processes of their own, on a real Kafka."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Final

import pytest

from asyncgroup import Consumer, TopicPartition
from tests.real.spark_driver import Driver, two_executors
from tests.real.spark_support import Kafka
from tests.real.support import RunningKafka

MEMORY: Final = 5 << 30
"""Bytes that a driver, a master, two executors and their workers need, with a reserve."""


def available_memory() -> int | None:
    """Return the machine's available memory in bytes; None if it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def spark_home(place: Path) -> Path:
    """Link pyspark's files in another directory: workers of a cluster write files next to them."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    for entry in Path(spec.origin).parent.iterdir():
        (place / entry.name).symlink_to(entry)
    return place


PARTITIONS, ROWS_EACH = 4, 5_000
WAYS: Final = ("sink", "transactions", "bridge")


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_two_executors_copy_a_topic(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    memory = available_memory()
    if memory is not None and memory < MEMORY:
        pytest.skip(f"a cluster of two executors needs {MEMORY >> 20} MiB, {memory >> 20} are available")
    pytest.importorskip("pyspark")
    (tmp_path / "spark").mkdir()
    rows = PARTITIONS * ROWS_EACH
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(PARTITIONS)
        copies = {way: await kafka.topic(3) for way in WAYS}
        await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), ROWS_EACH))
        settings = {
            "servers": kafka.servers,
            "options": {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "8000"},
            "copies": copies,
            "rows": rows,
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        environ = {"SPARK_HOME": str(spark_home(tmp_path / "spark"))}
        began = time.monotonic()
        async with Driver(two_executors, settings, environ) as driver:
            for way in WAYS:
                assert await driver.line() == f"{way}: rows {rows}, values {rows}, executors 2"
                print(f"{time.monotonic() - began:.1f} s: {way}")
        async with Consumer(kafka.servers) as consumer:
            committed = await consumer.committed(copies["bridge"])
    assert {tp: each.offset for tp, each in committed.items()} == {
        TopicPartition(topic, number): ROWS_EACH for number in range(PARTITIONS)
    }
