"""ForeachBatch in a group with a Java consumer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark import BatchId, ForeachBatch
from tests.interop.java_tools import JavaTools
from tests.interop.test_java_groups import (
    GROUP,
    LIMIT,
    PARTITIONS,
    TOPIC,
    committed,
    consumer,
    held_partitions,
    positions,
    produce,
    read_records,
)
from tests.interop.waiting import until
from tests.spark.bridge.fakes import FakeSpark

CONFIG = ConsumerConfig(auto_offset_reset="earliest", heartbeat_interval=0.1)


class Seen:
    """The positions of all rows, as batches brought them."""

    def __init__(self) -> None:
        self.positions: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def __call__(self, df: Any, _batch_id: BatchId) -> None:
        with self._lock:
            self.positions += zip(df["partition"].to_pylist(), df["offset"].to_pylist(), strict=True)


@pytest.mark.full
async def test_partitions_are_shared_with_a_member_in_java(java_tools: JavaTools, tmp_path: Path) -> None:
    """The Java member joins, gets half of the partitions, reads their records and leaves; each record is read once."""
    settings, ours = tmp_path / "consumer.properties", Seen()
    settings.write_text("heartbeat.interval.ms=100\nfetch.max.wait.ms=100\n")
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        async with ConsumerGroup(cluster.bootstrap_servers, GROUP, CONFIG) as group:
            handler = ForeachBatch(FakeSpark(), ours, max_wait=0.02)  # type: ignore[arg-type]
            running = asyncio.create_task(group.run(TOPIC, handler))
            await until(lambda: held_partitions(cluster) == [4], LIMIT)
            java = asyncio.create_task(consumer(java_tools, cluster, 20, "RangeAssignor", settings))
            await until(lambda: held_partitions(cluster) == [2, 2] or java.done(), LIMIT)
            await produce(cluster, 10)
            theirs = read_records(await java)
            assert len(theirs) == 20
            await until(lambda: held_partitions(cluster) == [4], LIMIT)
            await produce(cluster, 3)
            await until(lambda: committed(cluster) == dict.fromkeys(range(PARTITIONS), 13), LIMIT)
            await group.aclose()
            await running
    assert sorted(ours.positions + theirs) == positions(0, 13)
