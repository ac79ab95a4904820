"""A streaming query and its consumer group on a real Kafka: start offsets from the group, commits to the group."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, OffsetManager, Session, TopicPartition
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.interop.java_tools import JavaTools
from tests.real.spark_support import LIMIT, Kafka, Query, RowPosition, StoredBatches, run_now, stream
from tests.real.support import RunningKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
OURS = "asyncgroup"


def all_rows(topic: str, offsets: dict[int, int]) -> Counter[RowPosition]:
    """Return every row of each partition before its end offset, once."""
    return Counter((topic, number, offset) for number, end in offsets.items() for offset in range(end))


async def committed(kafka: Kafka, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the group's committed offsets by partition."""
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    found = await kafka.admin.committed(group, wanted)
    return {tp.partition: offset for tp, offset in found.items()}


async def wait_for_commits(kafka: Kafka, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Wait until the group's committed offsets are exactly these."""
    async with asyncio.timeout(LIMIT):
        while await committed(kafka, group, topic, len(offsets)) != offsets:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "scale", [1, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
async def test_a_new_checkpoint_starts_at_the_groups_offsets(
    spark: SparkSession, apache_kafka: RunningKafka, tmp_path: Path, scale: int
) -> None:
    """Two partitions, of which one is new and has no commit; the second query has a checkpoint of its own."""
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        options = {
            "subscribe": topic,
            "startingOffsets": "group",
            "groupFallback": "earliest",
            "kafka.group.id": f"{topic}-group",
            "maxOffsetsPerTrigger": 500 * scale,
        }

        async def run(name: str) -> Counter[RowPosition]:
            stored = StoredBatches()
            frame = stream(spark, OURS, kafka.servers, **options)
            await asyncio.to_thread(run_now, frame, tmp_path / name, stored, 240)
            return stored.rows

        await kafka.produce(topic, {0: 600 * scale})
        first = await run("first")
        assert first == all_rows(topic, {0: 600 * scale})
        assert await committed(kafka, f"{topic}-group", topic, 1) == {0: 600 * scale}, "the last batch, too"
        await kafka.admin.create_partitions(topic, 2)
        await kafka.produce(topic, {0: 900 * scale, 1: 500 * scale})
        assert first + await run("second") == all_rows(topic, {0: 1500 * scale, 1: 500 * scale})


class _IdleHandler(Handler):
    """A handler that marks nothing."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        await session.wait_ended()


@contextlib.asynccontextmanager
async def running_member(servers: str, group_id: str, topic: str) -> AsyncIterator[None]:
    """Run a member of a group, as another program would."""
    async with ConsumerGroup(servers, group_id, ConsumerConfig(client_id="the-warehouse")) as group:
        running = asyncio.create_task(group.run(topic, _IdleHandler()))
        async with asyncio.timeout(LIMIT):
            while group.session is None:
                await asyncio.sleep(0.02)
        yield
        await group.aclose()
        await running


async def describe_group(tools: JavaTools, servers: str, group: str) -> dict[str, tuple[str, str, str]]:
    """Return offset, log end offset and lag by partition, as Kafka's own tool shows them."""
    output = await tools(
        "kafka-consumer-groups", "--bootstrap-server", servers, "--describe", "--group", group
    )
    assert output.code == 0, output.text
    # the first line says that the group has no active members
    lines = output.text[output.text.index("GROUP ") :].splitlines()
    headings, *rows = [line.split() for line in lines if line.strip()]
    found = [dict(zip(headings, row, strict=False)) for row in rows]
    return {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in found}


@pytest.mark.full
async def test_a_group_with_members_is_an_error_until_they_have_left(
    spark: SparkSession, apache_kafka: RunningKafka, java_tools: JavaTools, tmp_path: Path
) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(2)
        group = f"{topic}-group"
        await kafka.produce(topic, {0: 30, 1: 50})
        options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group}
        async with running_member(kafka.servers, group, topic):
            async with Query(stream(spark, OURS, kafka.servers, **options), tmp_path) as query:
                message = await query.wait_failed()
        assert "[ASYNCGROUP_GROUP_IN_USE]" in message
        assert group in message
        assert "the-warehouse" in message
        # after the member has left the same query runs, and lag tools show its progress
        async with Query(stream(spark, OURS, kafka.servers, **options), tmp_path) as query:
            await query.wait_for_rows(80)
            await wait_for_commits(kafka, group, topic, {0: 30, 1: 50})
            assert await describe_group(java_tools, kafka.servers, group) == {
                "0": ("30", "30", "0"),
                "1": ("50", "50", "0"),
            }
        await kafka.produce(topic, {0: 7})
        assert (await describe_group(java_tools, kafka.servers, group))["0"] == ("30", "37", "7")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("kafka_at_hand")
async def test_commits_while_idle_keep_the_group_alive(spark: SparkSession, tmp_path: Path) -> None:
    """Kafka expires the offsets of groups without members, here after a minute: those of another group, not the query's."""
    properties = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1000}
    async with ApacheKafka(properties=properties) as broker, Kafka.at(broker.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        await kafka.produce(topic, {0: 5})
        options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": "query"}
        frame = stream(spark, OURS, kafka.servers, **options, commitInterval="10s")
        async with Query(frame, tmp_path) as query:
            await query.wait_for_rows(5)
            await wait_for_commits(kafka, "query", topic, {0: 5})
            # no records from now on; the other group commits after the query's last batch
            async with OffsetManager(kafka.servers, "other", ConsumerConfig(auto_commit=False)) as other:
                (await other.manage(topic, 0)).mark_offset(5)
                await other.commit()
            async with asyncio.timeout(300):
                while await committed(kafka, "other", topic, 1):
                    assert await committed(kafka, "query", topic, 1) == {0: 5}
                    await asyncio.sleep(1)
            assert await committed(kafka, "query", topic, 1) == {0: 5}
            assert query.stored.rows == all_rows(topic, {0: 5})
