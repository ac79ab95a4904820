"""Work queues with transactional copies on a real Kafka: each copy is there once, whenever the process is killed."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from asyncgroup import Consumer, ConsumerConfig, Producer, TopicPartition
from tests.real.queue_transactions_driver import handle, queue
from tests.real.support import RunningKafka
from tests.real.test_work_queue import QueueEnvironment
from tests.stories.queue_members import acked

RECORDS = 4000
KILLS = 6
MOST_DELIVERIES = RECORDS // KILLS // 2
"""Of a process, at most, so that records are left after all kills."""


async def process_for(env: QueueEnvironment, deliveries: int) -> None:
    """Run the queue in a process of its own, and kill it when it has begun this number of deliveries."""
    command = [sys.executable, "-m", "tests.real.queue_transactions_driver"]
    process = await asyncio.create_subprocess_exec(
        *command, env.bootstrap_servers, env.group_id, env.topic, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
        await process.stdout.readexactly(deliveries)
        assert process.returncode is None
    finally:
        process.kill()
        await process.communicate()


async def read_committed(env: QueueEnvironment, topic: str) -> list[int]:
    """Return the numbers in a topic, as readers with `read_committed` see them, when no transaction is open."""
    found: list[int] = []
    async with (
        asyncio.timeout(env.limit),
        Consumer(env.bootstrap_servers, ConsumerConfig(isolation_level="read_committed")) as consumer,
        Consumer(env.bootstrap_servers) as uncommitted,
    ):
        for number in await consumer.partitions(topic):
            tp = TopicPartition(topic, number)
            while (end := (await consumer.end_offsets([tp]))[tp]) != (await uncommitted.end_offsets([tp]))[
                tp
            ]:
                await asyncio.sleep(0.1)
            reader = await consumer.partition(*tp, "earliest")
            while reader.position < end:
                try:
                    async with asyncio.timeout(0.5):
                        found.append(int((await anext(reader)).value or b"-1"))
                except TimeoutError:
                    continue
    return sorted(found)


async def until_all_acked(env: QueueEnvironment, counts: list[int]) -> None:
    """Wait until all records of the topic are acknowledged in the group's commits."""
    async with asyncio.timeout(3 * env.limit):
        for number, count in enumerate(counts):
            while await acked(env, number) != list(range(count)):
                await asyncio.sleep(0.2)


@pytest.mark.soak
async def test_each_copy_is_there_once_after_kills(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    rng = random.Random(1)
    async with QueueEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        async with Producer(env.bootstrap_servers) as producer:
            for number in range(RECORDS):
                await producer.enqueue(env.topic, b"%d" % number, partition=number % 4)
        for _ in range(KILLS):
            await process_for(env, rng.randint(50, MOST_DELIVERIES))
        before = [len(await acked(env, number)) for number in range(4)]
        made = queue(env.bootstrap_servers, env.group_id, env.topic)
        async with made:
            running = asyncio.create_task(made.run(handle))
            await until_all_acked(env, [RECORDS // 4] * 4)
            retry, dead = made.retry_topic, made.dead_letter_topic
            assert retry is not None
            assert dead is not None
            wanted = [number for number in range(RECORDS) if number % 3 == 1]
            assert await read_committed(env, retry) == wanted
            await made.aclose()
            await running
        assert await read_committed(env, dead) == [number for number in range(RECORDS) if number % 3 == 0]
        assert 0 < sum(before) < RECORDS, "kill the processes at other times"
