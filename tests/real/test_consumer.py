"""A consumer without a group on a real Kafka: start offsets, offsets out of range, errors while the broker is down."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from asyncgroup import Cluster, Consumer, ConsumerConfig, TopicPartition
from asyncgroup.consumer.list_offsets import StartOffset
from asyncgroup.errors import OffsetOutOfRangeError, TransportError
from asyncgroup.model import wall_clock
from asyncgroup.producer import Producer
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from tests.real.support import RunningKafka
from tests.real.test_producer import new_topic

HOUR_MS = 3_600_000


async def topic_with_records(cluster: Cluster, now: int) -> str:
    """Create a topic with records of five, four, three, two and one hours ago."""
    topic = await new_topic(cluster, 1)
    async with Producer(cluster) as producer:
        for hours in (5, 4, 3, 2, 1):
            await producer.send(topic, b"%d" % hours, partition=0, timestamp=now - hours * HOUR_MS)
    return topic


async def test_start_offsets(apache_kafka: RunningKafka) -> None:
    now = wall_clock()
    at = datetime.fromtimestamp(now / 1000, UTC)
    starts: list[tuple[StartOffset, int]] = [
        ("earliest", 0),
        ("latest", 5),
        (3, 3),
        (at - timedelta(hours=3), 2),
        (at - timedelta(hours=3) + timedelta(milliseconds=1), 3),
        (at, 5),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (timedelta(hours=2, minutes=30), 3),
        (timedelta(days=20_000), 0),
        (timedelta(minutes=1), 5),
    ]
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await topic_with_records(cluster, now)
        for start, first in starts:
            async with Consumer(cluster, clock=lambda: now) as consumer:
                partition = await consumer.partition(topic, 0, start)
                assert partition.initial_offset == first, start
                if first < 5:
                    assert (await anext(partition)).offset == first
                    assert consumer.high_watermarks() == {(topic, 0): 5}


@pytest.mark.parametrize(
    ("policy", "offset"),
    [("earliest", 2), ("latest", 5), (timedelta(hours=2, minutes=30), 3), ("error", None)],
)
async def test_an_offset_out_of_range(apache_kafka: RunningKafka, policy: object, offset: int | None) -> None:
    """The records before offset 2 are deleted: the log's range is 2..5."""
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await topic_with_records(cluster, wall_clock())
        await delete_before(cluster, TopicPartition(topic, 0), 2)
        config = ConsumerConfig(out_of_range_reset=policy)  # type: ignore[arg-type]
        async with Consumer(cluster, config) as consumer:
            partition = await consumer.partition(topic, 0, 0)
            errors = partition.errors()
            if offset is None:
                with pytest.raises(
                    OffsetOutOfRangeError, match=rf"{topic}-0: offset 0 .* which holds 2\.\.5$"
                ):
                    await anext(partition)
                partition.seek(4)
                assert (await anext(partition)).offset == 4
                return
            assert f"holds 2..5; continuing at {offset}" in str(await anext(errors))
            if offset < 5:
                assert (await anext(partition)).offset == offset


async def delete_before(cluster: Cluster, tp: TopicPartition, offset: int) -> None:
    request = m.DeleteRecordsRequest
    part = request.DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
    topic = request.DeleteRecordsTopic(name=tp.topic, partitions=[part])
    response = await cluster.request(await cluster.leader(tp), request(topics=[topic], timeout_ms=30_000))
    assert not response.topics[0].partitions[0].error_code


async def test_errors_while_the_broker_is_down(kafka_to_break: ApacheKafka) -> None:
    async with Cluster(kafka_to_break.bootstrap_servers) as cluster:
        topic = await topic_with_records(cluster, wall_clock())
        async with Consumer(cluster) as consumer:
            partition = await consumer.partition(topic, 0, "earliest")
            errors = partition.errors()
            assert [(await anext(partition)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
            reading = asyncio.ensure_future(anext(partition))
            await asyncio.to_thread(kafka_to_break.kill, 1)
            async with asyncio.timeout(30):
                assert isinstance(await anext(errors), TransportError)
            await asyncio.to_thread(kafka_to_break.start_node, 1)
            async with asyncio.timeout(60), Producer(cluster) as producer:
                await producer.send(topic, b"again", partition=0)
                assert (await reading).offset == 5
