"""The producer while leaders are killed and its own process is stopped: nothing lost, nothing twice, in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Consumer, ConsumerConfig, TopicPartition
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.chaos.producing import ProducingSettings
from tests.stories.admin import Admin

ROOT = Path(__file__).parents[3]
KILLS = 10
RECORDS = int(os.environ.get("ASYNCGROUP_CHAOS_RECORDS", "1000000"))
RATE = 8_000
PARTITIONS = 3


async def kill_leaders(kafka: ApacheKafka, admin: Admin, topic: str, pid: int, rng: random.Random) -> None:
    """Kill the leader of a partition and start it again, and stop and continue the producer, ten times."""
    for number in range(KILLS):
        leader = await admin.leader(TopicPartition(topic, number % PARTITIONS))
        await asyncio.to_thread(kafka.kill, leader)
        await asyncio.sleep(rng.uniform(0.5, 3))
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(rng.uniform(0.1, 2))
        os.kill(pid, signal.SIGCONT)
        await asyncio.to_thread(kafka.start_node, leader)
        await asyncio.sleep(rng.uniform(4, 6))  # the replicas are in sync again before the next kill


async def values_of(servers: str, tp: TopicPartition, count: int) -> list[int]:
    """Return the values in a partition from its beginning on; a further record would be there, too."""
    values: list[int] = []
    async with Consumer(servers, ConsumerConfig(check_crcs=True)) as consumer:
        partition = await consumer.partition(*tp, 0)
        async with asyncio.timeout(120):
            async for batch in partition.batches():
                values += [int(record.value or b"") for record in batch]
                if len(values) >= count and batch.last_offset + 1 >= partition.high_watermark:
                    return values
    raise AssertionError("the consumer ended")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
async def test_each_record_is_written_once(
    kafka_at_hand: None, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"producer-{uuid.uuid4().hex[:8]}"
    async with ApacheKafka(3, properties={"min.insync.replicas": 2}) as kafka:
        admin = Admin(kafka.bootstrap_servers)
        async with admin.cluster:
            await admin.create_topic(topic, PARTITIONS)
            settings = ProducingSettings(
                servers=kafka.bootstrap_servers,
                topic=topic,
                partitions=PARTITIONS,
                records=RECORDS,
                rate=RATE,
            )
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.real.chaos.producing", json.dumps(asdict(settings))),
                cwd=ROOT,
                stdin=pipe,
                stdout=pipe,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                reading = asyncio.create_task(last_line(process.stdout))
                await kill_leaders(kafka, admin, topic, process.pid, random.Random(seed))
                process.stdin.close()
                result = json.loads(await reading)
                assert await process.wait() == 0
            finally:
                if process.returncode is None:
                    process.kill()
        with capsys.disabled():
            print(f"\nseed {seed}: {result}")
        assert result["failed"] == {}
        count = result["records"]
        assert result["acknowledged"] == count >= RECORDS
        for partition in range(PARTITIONS):
            written = list(range(partition, count, PARTITIONS))
            assert (
                await values_of(kafka.bootstrap_servers, TopicPartition(topic, partition), len(written))
                == written
            )


async def last_line(stream: asyncio.StreamReader) -> Any:
    """Read lines until the end, and return the last one."""
    last = b""
    async for line in stream:
        last = line
    return last
