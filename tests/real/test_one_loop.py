"""`group.records()` and a consumer's lookups on a real Kafka: two members, a rebalance between them."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from asyncgroup import Cluster, Consumer, ConsumerConfig, ConsumerGroup, Producer, TopicPartition
from tests.real.support import RunningKafka
from tests.real.test_producer import new_topic

COUNT = 4000
LIMIT = 60.0


async def test_two_members_share_a_topic_by_async_for(apache_kafka: RunningKafka) -> None:
    group_id = f"loops-{uuid4().hex[:8]}"
    config = ConsumerConfig(auto_offset_reset="earliest", heartbeat_interval=0.5, session_timeout=10.0)
    seen: list[tuple[int, int]] = []
    all_read = asyncio.Event()

    async def consume(cluster: Cluster, topic: str) -> None:
        async with ConsumerGroup(cluster, group_id, config) as group:
            async for record in group.records(topic):
                seen.append((record.partition, record.offset))
                group.mark(record)
                if len(seen) % 100 == 0:
                    await asyncio.sleep(0.02)
                if len(seen) >= COUNT:
                    all_read.set()
                if all_read.is_set():
                    break

    async with Cluster(apache_kafka.bootstrap_servers) as cluster, asyncio.timeout(LIMIT):
        topic = await new_topic(cluster, 4)
        tps = [TopicPartition(topic, number) for number in range(4)]
        async with Producer(cluster) as producer:
            for number in range(COUNT):
                await producer.enqueue(topic, b"%d" % number, partition=number % 4)
            await producer.flush()
        first = asyncio.create_task(consume(cluster, topic))
        while len(seen) < COUNT // 8:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(consume(cluster, topic))
        await all_read.wait()
        for task in (first, second):
            if not task.done():
                await asyncio.wait([task], timeout=0.5)
                task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert len(seen) == len(set(seen)) == COUNT, (
            "each record once, despite a rebalance and closing members"
        )
        async with Consumer(cluster) as consumer:
            assert await consumer.beginning_offsets(tps) == dict.fromkeys(tps, 0)
            assert await consumer.end_offsets(tps) == dict.fromkeys(tps, COUNT // 4)
            committed = await consumer.committed(group_id)
            assert {tp: at.offset for tp, at in committed.items()} == dict.fromkeys(tps, COUNT // 4)
            assert await consumer.committed(group_id, tps[:1]) == {tps[0]: committed[tps[0]]}
            found = await consumer.offsets_for_times({tps[0]: 0, tps[1]: 1 << 42})
            assert found[tps[1]] is None
            assert found[tps[0]] is not None
            assert found[tps[0]].offset == 0
            reader = await consumer.partition(*tps[0], 7)
            assert (await anext(reader)).offset == 7
            reader.seek("earliest")
            assert (await anext(reader)).offset == 0
