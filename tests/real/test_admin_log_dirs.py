"""Admin on a real Kafka: replicas move between the log directories of a node, beside Kafka's own tool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import BrokerError, Producer, TopicPartition
from asyncgroup.admin import Admin, NewTopic
from asyncgroup.error_codes import error_name
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.interop.java_tools import JavaTools
from tests.real.beside_kafka import Beside
from tests.real.support import until_shown
from tests.real.test_admin_brokers import by_kafka_python

pytestmark = pytest.mark.full

ZERO, ONE, MISSING = (TopicPartition("moving", number) for number in (0, 1, 9))


@pytest_asyncio.fixture
async def kafka(kafka_at_hand: None) -> AsyncIterator[ApacheKafka]:
    """One node with two log directories."""
    async with ApacheKafka(log_dirs=2) as kafka:
        yield kafka


@pytest_asyncio.fixture
async def kafka_39_with_two(kafka_39: ApacheKafka) -> AsyncIterator[ApacheKafka]:
    """The same of Kafka 3.9, which is at hand if `kafka_39` runs."""
    async with ApacheKafka(version=kafka_39.version, log_dirs=2) as kafka:
        yield kafka


async def places(admin: Admin) -> dict[TopicPartition, str] | None:
    """Return the directory of each replica; None while one is not there yet, or is being copied."""
    dirs = (await admin.brokers.log_dirs(1, partitions=[ZERO, ONE])).raise_first()[1]
    replicas = [(each, one.path) for one in dirs for each in one.replicas]
    if len(replicas) != 2 or any(each.is_future for each, _ in replicas):
        return None
    return {each.partition: path for each, path in replicas}


async def first_places(admin: Admin) -> dict[TopicPartition, str]:
    """Wait for the replicas of a new topic, which a broker creates after it knows the topic; return their directories."""

    async def are_there() -> bool:
        return await places(admin) is not None

    await until_shown(are_there, True)
    found = await places(admin)
    assert found is not None
    return found


async def settle(admin: Admin, expected: dict[TopicPartition, str]) -> None:
    """Wait until the replicas are in these directories: Kafka 3.9 creates the copy a moment after its answer."""
    await until_shown(partial(places, admin), expected)


async def test_a_replica_moves_between_directories(
    kafka: ApacheKafka, java_tools: JavaTools, tmp_path: Path
) -> None:
    await compare_moves(kafka, java_tools, tmp_path)


async def test_a_replica_moves_between_directories_of_kafka_3_9(
    kafka_39_with_two: ApacheKafka, java_tools: JavaTools, tmp_path: Path
) -> None:
    await compare_moves(kafka_39_with_two, java_tools, tmp_path)


async def compare_moves(kafka: ApacheKafka, java_tools: JavaTools, tmp_path: Path) -> None:
    async with Admin(kafka.bootstrap_servers) as admin:
        (await admin.create_topics({"moving": NewTopic(2, 1)})).raise_first()
        async with Producer(kafka.bootstrap_servers) as producer:
            await producer.send("moving", b"x" * 1000, partition=0)
        paths = [each.path for each in (await admin.brokers.log_dirs(1)).raise_first()[1]]
        before = await first_places(admin)
        (target,) = (path for path in paths if path != before[ZERO])
        wanted = {ZERO: target, ONE: before[ONE], MISSING: target}
        altered = await admin.replicas.alter_log_dirs(1, wanted)
        assert sorted(altered.values_by_name) == [ZERO, ONE]
        refused = altered[MISSING]
        assert isinstance(refused, BrokerError)
        assert refused.name == "UNKNOWN_TOPIC_OR_PARTITION"
        await settle(admin, {ZERO: target, ONE: before[ONE]})
        refused = (await admin.replicas.alter_log_dirs(1, {ZERO: "/no/such/directory"}))[ZERO]
        assert isinstance(refused, BrokerError)
        assert refused.name == "LOG_DIR_NOT_FOUND"

        # kafka-python has the same results
        for paths_wanted in (wanted, {ZERO: "/no/such/directory"}):
            altered = await admin.replicas.alter_log_dirs(1, paths_wanted)
            assert await moved_by_kafka_python(kafka, paths_wanted) == {
                tp: error.name if isinstance(error, BrokerError) else "NONE" for tp, error in altered.items()
            }

        # Kafka's tool says that our move is complete, and moves it back
        plan = tmp_path / "plan.json"
        for path in (target, before[ZERO]):
            partition = {"topic": "moving", "partition": 0, "replicas": [1], "log_dirs": [path]}
            plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
            arguments = ("--bootstrap-server", kafka.bootstrap_servers, "--reassignment-json-file", str(plan))
            if path == before[ZERO]:
                begun = await java_tools("kafka-reassign-partitions", *arguments, "--execute")
                assert begun.code == 0, begun.text
                assert f"started moving log directory to {path} for replica moving-0" in begun.text, (
                    begun.text
                )
                await settle(admin, before)
            verified = await java_tools("kafka-reassign-partitions", *arguments, "--verify")
            assert "Reassignment of replica moving-0-1 completed successfully." in verified.text, (
                verified.text
            )


async def moved_by_kafka_python(
    kafka: ApacheKafka, wanted: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Return the name of the error of each partition, "NONE" for those without one."""

    def move(admin: Any) -> Any:
        from kafka.structs import TopicPartitionReplica

        return admin.alter_replica_log_dirs(
            {TopicPartitionReplica(*tp, 1): path for tp, path in wanted.items()}
        )

    found = await by_kafka_python(kafka.bootstrap_servers, move)
    return {
        TopicPartition(each.topic, each.partition): error_name(error.errno) for each, error in found.items()
    }


async def test_the_command_beside_kafkas_tool(
    kafka: ApacheKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    beside, plan = Beside(kafka.bootstrap_servers, java_tools, capsys), tmp_path / "plan.json"
    await beside.ours.ok("topics", "create", "moving", "-p", "1", "-r", "1")
    paths = [row["path"] for row in await beside.ours.json("cluster", "log-dirs")]

    async def place() -> str | None:
        """Return the directory of the only replica, which both commands show; None while there is a copy."""
        *_, line = await beside.lines("kafka-log-dirs", "--describe", "--topic-list", "moving")
        (node,) = json.loads(line)["brokers"]
        theirs = {
            (each["logDir"], part["isFuture"]) for each in node["logDirs"] for part in each["partitions"]
        }
        rows = await beside.ours.json("cluster", "log-dirs", "moving", "--replicas")
        ours = {(row["path"], row["future"]) for row in rows}
        return next(iter(ours))[0] if ours == theirs and len(ours) == 1 else None

    def with_tool(path: str, option: str) -> tuple[str, ...]:
        partition = {"topic": "moving", "partition": 0, "replicas": [1], "log_dirs": [path]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}), encoding="utf-8")
        return ("kafka-reassign-partitions", "--reassignment-json-file", str(plan), option)

    async def verified(path: str) -> bool:
        done = "Reassignment of replica moving-0-1 completed successfully."
        return done in await beside.lines(*with_tool(path, "--verify"))

    async def is_there() -> bool:
        return await place() is not None

    await until_shown(is_there, True)
    first = await place()
    assert first is not None
    (second,) = (path for path in paths if path != first)
    change = ("cluster", "alter-log-dirs", "1")
    begun = await beside.ours.json(*change, f"moving:0={second}")
    row = {"topic": "moving", "partition": 0, "path": second, "status": "begun", "error": None}
    assert begun == [row]
    await until_shown(place, second)
    assert await verified(second)
    await beside.lines(*with_tool(first, "--execute"))
    await until_shown(place, first)
    assert await verified(first)
    await beside.both_refuse(
        (*change, "moving:0=/no/such/directory"),
        with_tool("/no/such/directory", "--execute"),
        error="LOG_DIR_NOT_FOUND",
        words="moving-0",
        their_words="LogDirNotFoundException",
    )
