"""Java consumers in one group: a second one joins, both commit and leave, a third one resumes at the committed offsets.

They are Kafka's VerifiableConsumer, which prints each event as a line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from tests.interop.java_tools import JavaTools
from tests.interop.waiting import until

LIMIT = 60.0
TOPIC, GROUP, PARTITIONS = "orders", "java", 4
ASSIGNORS = "org.apache.kafka.clients.consumer"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Settings for consumers that notice a rebalance quickly."""
    file = tmp_path / "consumer.properties"
    file.write_text("heartbeat.interval.ms=100\nfetch.max.wait.ms=100\n")
    return file


async def consumer(
    tools: JavaTools, cluster: EmbeddedCluster, enough: int, assignor: str, settings: Path
) -> list[dict[str, Any]]:
    """Read `enough` records and commit each batch; return the events."""
    output = await tools(
        "kafka-verifiable-consumer",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", TOPIC, "--group-id", GROUP),
        *("--max-messages", str(enough), "--reset-policy", "earliest", "--verbose"),
        *("--assignment-strategy", f"{ASSIGNORS}.{assignor}", "--command-config", str(settings)),
    )
    assert output.code == 0, output.text
    events = []
    for line in output.lines:
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events


async def produce(cluster: EmbeddedCluster, count: int) -> None:
    """Write `count` records to each partition."""
    async with Producer(cluster.bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            for number in range(count):
                await producer.send(TOPIC, b"%d-%d" % (partition, number), partition=partition)


def read_records(*consumers: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return (partition, offset) of the records in the events of consumers."""
    return sorted(
        (event["partition"], event["offset"])
        for events in consumers
        for event in events
        if event["name"] == "record_data"
    )


def positions(start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(start, end)]


def held_partitions(cluster: EmbeddedCluster) -> list[int]:
    """Return the number of partitions of each member, or an empty list if the group is not stable."""
    view = cluster.group(GROUP)
    counts = [sum(map(len, member.assignment.values())) for member in view.members.values()]
    return sorted(counts) if view.state == "Stable" else []


def committed(cluster: EmbeddedCluster) -> dict[int, int]:
    return {tp.partition: offset.offset for tp, offset in cluster.group(GROUP).offsets.items()}


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
async def test_java_consumers_share_a_group_and_resume(
    java_tools: JavaTools, settings: Path, assignor: str
) -> None:
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(consumer(java_tools, cluster, 20, assignor, settings))
            await until(lambda: held_partitions(cluster) == [4] or first.done(), LIMIT)
            second = tasks.create_task(consumer(java_tools, cluster, 20, assignor, settings))
            await until(lambda: held_partitions(cluster) == [2, 2] or second.done(), LIMIT)
            generation = cluster.group(GROUP).generation
            await produce(cluster, 10)
        assert generation >= 2
        for events in (first.result(), second.result()):
            names = [event["name"] for event in events]
            assert names[0] == "startup_complete"
            assert names[-1] == "shutdown_complete"
            assert {"partitions_assigned", "offsets_committed"} <= set(names)
        await until(lambda: cluster.group(GROUP).state == "Empty", LIMIT)
        seen, before = read_records(first.result(), second.result()), committed(cluster)
        # A commit fails if the member has not noticed yet that the other one has left; it is not retried.
        failed = any(
            event["name"] == "offsets_committed" and not event["success"]
            for event in [*first.result(), *second.result()]
        )
        if not failed:
            assert seen == positions(0, 10)
            assert before == dict.fromkeys(range(PARTITIONS), 10)
        await produce(cluster, 3)
        left = [(p, o) for p in range(PARTITIONS) for o in range(before.get(p, 0), 13)]
        third = await consumer(java_tools, cluster, len(left), assignor, settings)
        assert read_records(third) == left
        assert {*seen, *left} == {*positions(0, 13)}
        assert committed(cluster) == dict.fromkeys(range(PARTITIONS), 13)
