"""A topic is recreated between two runs of a query, on a real Kafka: the broker deletes the group's offsets with the topic.

Without Spark: the test calls the source as Spark's driver does.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import TopicPartition
from asyncgroup.config import ConsumerConfig
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.progress import Offsets, StreamProgress
from asyncgroup.spark.source.errors import DataLossError
from asyncgroup.spark.source.options.settings import Earliest, ReadSettings, Subscribe
from tests.real.spark_support import LIMIT, Kafka
from tests.real.support import RunningKafka

pytestmark = pytest.mark.timeout(300)


def settings(servers: str, topic: str, *, strict: bool) -> ReadSettings:
    return ReadSettings(
        bootstrap_servers=servers,
        config=ConsumerConfig(),
        strategy=Subscribe((topic,)),
        starting=Earliest(),
        fail_on_data_loss=strict,
        group_id=f"{topic}-group",
    )


def run(of: ReadSettings, start: Offsets | None) -> tuple[Offsets, list[OffsetRange]]:
    """Run with Trigger.AvailableNow, and return the end offsets and the ranges that were read."""
    progress = StreamProgress(of)
    read: list[OffsetRange] = []
    try:
        progress.prepare_available_now()
        at = progress.initial_offsets() if start is None else start
        while (end := progress.next_end(at)) != at:
            read += [part for task in progress.tasks(at, end) for part in task]
            at = end
        return at, read
    finally:
        progress.stop()


async def test_a_topic_recreated_between_two_runs(apache_kafka: RunningKafka) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        place = TopicPartition(topic, 0)
        strict, lenient = (settings(kafka.servers, topic, strict=each) for each in (True, False))
        await kafka.produce(topic, {0: 1_000})
        checkpoint, _ = await asyncio.to_thread(run, strict, None)
        assert checkpoint == {place: 1_000}
        assert await asyncio.to_thread(run, strict, checkpoint) == (checkpoint, [])
        await kafka.delete_topic(topic)
        async with asyncio.timeout(LIMIT):
            while await kafka.admin.committed(f"{topic}-group", [place]):
                await asyncio.sleep(0.05)
        await kafka.admin.recreate_topic(topic, 1)
        await kafka.produce(topic, {0: 1_500})
        with pytest.raises(DataLossError, match="ASYNCGROUP_GROUP_LACKS_OFFSETS"):
            await asyncio.to_thread(run, strict, checkpoint)
        end, read = await asyncio.to_thread(run, lenient, checkpoint)
        assert (end, read) == ({place: 1_500}, [OffsetRange(topic, 0, 0, 1_500)])
        assert await kafka.admin.committed(f"{topic}-group", [place]) == {place: 1_500}
        await kafka.produce(topic, {0: 10})
        assert await asyncio.to_thread(run, strict, end) == (
            {place: 1_510},
            [OffsetRange(topic, 0, 1_500, 1_510)],
        )
