"""Commands that change topics and configurations, beside Kafka's own tools on the same Apache Kafka.

What one of the two has changed, the other one shows; and both refuse the same bad input with the same words of the broker.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.real.beside_kafka import (
    Beside,
    beside,
    beside_39,
    beside_breakable,
    filled,
    unique,
)
from tests.real.support import NEEDS_KAFKA_4, until_shown

__all__ = ["beside", "beside_39", "beside_breakable"]

pytestmark = pytest.mark.full

# --- topics -----------------------------------------------------------------------------------------------------------


async def partitions_of(beside: Beside, topic: str) -> tuple[int, dict[str, str]] | None:
    """Return the number of partitions of a topic and its own configurations, None if the commands describe it differently."""
    head, theirs = await beside.described(topic)
    ours = await beside.columns("topics", "describe", topic, "--wide")
    if [{name: row[name] for name in theirs[0]} for row in ours] != theirs:
        return None
    rows = await beside.ours.json("topics", "describe", topic, "--with-overrides")
    configs = rows[0]["configs"] if rows else {}
    alike = all(f"{name}={value}" in head for name, value in configs.items())
    return (len(theirs), configs) if alike else None


async def test_created_and_deleted_topics(beside: Beside) -> None:
    await created_and_deleted_topics(beside)


async def test_created_and_deleted_topics_on_an_old_kafka(beside_39: Beside) -> None:
    await created_and_deleted_topics(beside_39)


async def created_and_deleted_topics(beside: Beside) -> None:
    """Create a topic with each command, describe them with both, and let each delete that of the other."""
    ours, theirs = unique("ours"), unique("theirs")

    async def existing() -> set[str] | None:
        """Return which of the two exist, None if the commands differ, one of which may have been earlier than a change."""
        found = set(await beside.lines("kafka-topics", "--list")) & {ours, theirs}
        listed = set((await beside.ours.ok("topics", "list", "-q")).lines) & {ours, theirs}
        return found if listed == found else None

    numbers = ("-p", "3", "-r", "1")
    configs = ("--set", "retention.ms=77", "--set", "cleanup.policy=[compact,delete]")
    valid = await beside.ours.json("topics", "create", ours, *numbers, *configs, "--dry-run")
    assert valid == [{"topic": ours, "status": "valid", "error": None}]
    assert await existing() == set()
    created = await beside.ours.json("topics", "create", ours, *numbers, *configs)
    assert created == [{"topic": ours, "status": "created", "error": None}]
    their_numbers = ("--partitions", "3", "--replication-factor", "1")
    their_configs = ("--config", "retention.ms=77", "--config", "cleanup.policy=compact,delete")
    await beside.lines("kafka-topics", "--create", "--topic", theirs, *their_numbers, *their_configs)
    await until_shown(existing, {ours, theirs})
    expected = {"retention.ms": "77", "cleanup.policy": "compact,delete"}
    for topic in (ours, theirs):
        await until_shown(partial(partitions_of, beside, topic), (3, expected))
        await beside.both_refuse(
            ("topics", "create", topic),
            ("kafka-topics", "--create", "--topic", topic),
            error="TOPIC_ALREADY_EXISTS",
            words=f"Topic '{topic}' already exists",
        )
        again = await beside.ours.json("topics", "create", topic, "--if-not-exists")
        assert again == [{"topic": topic, "status": "exists", "error": None}]
        await beside.lines("kafka-topics", "--create", "--topic", topic, "--if-not-exists")

    new = unique("new")
    for option, value, error, words in (
        ("-r", "9", "INVALID_REPLICATION_FACTOR", "Unable to replicate the partition 9 time(s)"),
        ("--replica-assignment", "1,77", "INVALID_REPLICA_ASSIGNMENT", "includes broker 77"),
        ("--set", "retention.ms=x", "INVALID_CONFIG", "Invalid value x for configuration retention.ms"),
        ("--set", "nonsense=1", "INVALID_CONFIG", "nonsense"),
    ):
        their_option = {"-r": "--replication-factor", "--set": "--config"}.get(option, option)
        await beside.both_refuse(
            ("topics", "create", new, option, value),
            ("kafka-topics", "--create", "--topic", new, their_option, value),
            error=error,
            words=words,
        )

    deleted = await beside.ours.json("topics", "delete", theirs)
    assert deleted == [{"topic": theirs, "status": "deleted", "error": None}]
    await until_shown(existing, {ours})
    await beside.lines("kafka-topics", "--delete", "--topic", ours)
    await until_shown(existing, set())
    await beside.both_refuse(
        ("topics", "delete", ours),
        ("kafka-topics", "--delete", "--topic", ours),
        error="UNKNOWN_TOPIC_OR_PARTITION",
        words=ours,
        their_words=f"Topic '{ours}' does not exist as expected",
    )
    missing = await beside.ours.json("topics", "delete", ours, "--if-exists")
    assert missing == [{"topic": ours, "status": "missing", "error": None}]
    await beside.lines("kafka-topics", "--delete", "--topic", ours, "--if-exists")


async def test_added_partitions(beside: Beside) -> None:
    topic = unique("added")
    await beside.ours.ok("topics", "create", topic, "-p", "1", "-r", "1")

    described = partial(partitions_of, beside, topic)
    valid = await beside.ours.json("topics", "add-partitions", topic, "--total", "3", "--dry-run")
    assert valid == [{"topic": topic, "partitions": 3, "status": "valid", "error": None}]
    assert await described() == (1, {})
    added = await beside.ours.json("topics", "add-partitions", topic, "--total", "3")
    assert added == [{"topic": topic, "partitions": 3, "status": "added", "error": None}]
    await until_shown(described, (3, {}))
    await beside.lines("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    await until_shown(described, (5, {}))
    for total, words in (
        ("2", f"The topic {topic} currently has 5 partition(s); 2 would not be an increase"),
        ("5", "Topic already has 5 partition(s)"),
    ):
        await beside.both_refuse(
            ("topics", "add-partitions", topic, "--total", total),
            ("kafka-topics", "--alter", "--topic", topic, "--partitions", total),
            error="INVALID_PARTITIONS",
            words=words,
        )
    missing = unique("missing")
    await beside.both_refuse(
        ("topics", "add-partitions", missing, "--total", "2"),
        ("kafka-topics", "--alter", "--topic", missing, "--partitions", "2"),
        error="UNKNOWN_TOPIC_OR_PARTITION",
        words=missing,
        their_words=f"Topic '{missing}' does not exist as expected",
    )


async def test_deleted_records(beside: Beside, tmp_path: Path) -> None:
    topic = await filled(beside)

    def with_tool(partition: int, offset: int) -> tuple[str, ...]:
        file = tmp_path / f"{partition}-{offset}.json"
        place = {"topic": topic, "partition": partition, "offset": offset}
        file.write_text(json.dumps({"version": 1, "partitions": [place]}), encoding="utf-8")
        return ("kafka-delete-records", "--offset-json-file", str(file))

    async def starts() -> list[str]:
        lines = await beside.lines("kafka-get-offsets", "--topic", topic, "--time", "earliest")
        ours = await beside.ours.json("offsets", "earliest", topic)
        assert [f"{row['topic']}:{row['partition']}:{row['offset']}" for row in ours] == lines
        return [line.rpartition(":")[2] for line in lines]

    assert await starts() == ["3", "0", "0"]
    deleted = await beside.ours.json("topics", "delete-records", f"{topic}:0", "--before", "5")
    row = {"topic": topic, "partition": 0, "log_start_offset": 5, "status": "deleted", "error": None}
    assert deleted == [row]
    assert await starts() == ["5", "0", "0"]
    lines = await beside.lines(*with_tool(1, 2))
    assert lines[-1] == f"partition: {topic}-1\tlow_watermark: 2"
    assert await starts() == ["5", "2", "0"]
    # all that there are: -1 is the high watermark
    assert (await beside.lines(*with_tool(1, -1)))[-1] == f"partition: {topic}-1\tlow_watermark: 4"
    deleted = await beside.ours.json("topics", "delete-records", topic, "--before", "latest")
    assert [row["log_start_offset"] for row in deleted] == [10, 4, 0]
    assert await starts() == ["10", "4", "0"]
    # what is deleted already is no error
    assert (await beside.lines(*with_tool(0, 2)))[-1] == f"partition: {topic}-0\tlow_watermark: 10"
    deleted = await beside.ours.json("topics", "delete-records", f"{topic}:0", "--before", "2")
    assert deleted == [{**row, "log_start_offset": 10}]
    await beside.both_refuse(
        ("topics", "delete-records", f"{topic}:0", "--before", "11"),
        with_tool(0, 11),
        error="OFFSET_OUT_OF_RANGE",
        words=f"{topic}-0",
        their_words=f"partition: {topic}-0\terror: org.apache.kafka.common.errors.OffsetOutOfRangeException",
    )


# --- configurations ---------------------------------------------------------------------------------------------------


def altered(kind: str, name: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "status": "altered", "error": None}]


async def altered_configurations(
    beside: Beside, kind: str, name: str, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Set and delete two configurations with each command; with ours also one from a file."""
    kinds = f"{kind}s"
    entity = ("--entity-type", kinds, "--entity-name", name)
    before = await beside.configs(kinds, name)

    async def both() -> dict[str, str | None] | None:
        """Return what has been altered since, None if the commands differ, one of which may have been earlier than a change."""
        theirs = await beside.configs(kinds, name)
        rows = await beside.ours.json("configs", "describe", kind, name)
        if {row["config"]: (row["value"], row["sensitive"]) for row in rows} != theirs:
            return None
        return {config: value for config, (value, _) in theirs.items() if config not in before}

    (first, one), (second, other) = pairs
    change = ("configs", "alter", kind, name)
    valid = await beside.ours.json(*change, "--set", f"{first}={one}", "--dry-run")
    assert valid == [{**altered(kind, name)[0], "status": "valid"}]
    assert await both() == {}
    file = tmp_path / "set.properties"
    file.write_text(f"{second}={other}\n", encoding="utf-8")
    ours = await beside.ours.json(*change, "--set", f"{first}={one}", "--set-file", str(file))
    assert ours == altered(kind, name)
    await until_shown(both, {first: one, second: other})
    await beside.lines("kafka-configs", "--alter", *entity, "--delete-config", f"{first},{second}")
    await until_shown(both, {})
    await beside.lines("kafka-configs", "--alter", *entity, "--add-config", f"{first}={one},{second}={other}")
    await until_shown(both, {first: one, second: other})
    assert await beside.ours.json(*change, "--delete", f"{first},{second}") == altered(kind, name)
    await until_shown(both, {})


async def test_altered_configurations_of_a_topic(beside: Beside, tmp_path: Path) -> None:
    topic = unique("configs")
    await beside.ours.ok("topics", "create", topic, "-p", "1", "-r", "1")
    await altered_configurations(
        beside, "topic", topic, [("retention.ms", "77"), ("segment.ms", "88")], tmp_path
    )

    async def policy() -> str | None:
        return (await beside.configs("topics", topic, "--all"))["cleanup.policy"][0]

    for option, value, expected in (
        ("--set", "[compact,delete]", "compact,delete"),
        ("--subtract", "delete", "compact"),
        ("--append", "[delete]", "compact,delete"),
    ):
        change = ("configs", "alter", "topic", topic, option, f"cleanup.policy={value}")
        assert await beside.ours.json(*change) == altered("topic", topic)
        await until_shown(policy, expected)

    entity = ("--entity-type", "topics", "--entity-name")
    for setting, error, words in (
        ("retention.ms=x", "INVALID_CONFIG", "Invalid value x for configuration retention.ms"),
        ("nonsense=1", "INVALID_CONFIG", "Unknown topic config name: nonsense"),
    ):
        await beside.both_refuse(
            ("configs", "alter", "topic", topic, "--set", setting),
            ("kafka-configs", "--alter", *entity, topic, "--add-config", setting),
            error=error,
            words=words,
        )
    missing = unique("missing")
    await beside.both_refuse(
        ("configs", "alter", "topic", missing, "--set", "retention.ms=1"),
        ("kafka-configs", "--alter", *entity, missing, "--add-config", "retention.ms=1"),
        error="UNKNOWN_TOPIC_OR_PARTITION",
        words=f"The topic '{missing}' does not exist",
    )


@NEEDS_KAFKA_4
async def test_altered_configurations_of_a_group(beside: Beside, tmp_path: Path) -> None:
    group = unique("configs")
    pairs = [("consumer.session.timeout.ms", "50000"), ("consumer.heartbeat.interval.ms", "6000")]
    await altered_configurations(beside, "group", group, pairs, tmp_path)
    await beside.both_refuse(
        ("configs", "alter", "group", group, "--set", "consumer.session.timeout.ms=1"),
        (
            *("kafka-configs", "--alter", "--entity-type", "groups", "--entity-name", group),
            *("--add-config", "consumer.session.timeout.ms=1"),
        ),
        error="INVALID_CONFIG",
        words="consumer.session.timeout.ms must be greater than or equal to",
    )


async def test_altered_configurations_of_a_broker(beside_breakable: Beside, tmp_path: Path) -> None:
    beside = beside_breakable
    pairs = [("log.cleaner.threads", "2"), ("max.connections.per.ip", "7777")]
    await altered_configurations(beside, "broker", "1", pairs, tmp_path)
    await beside.both_refuse(
        ("configs", "alter", "broker", "1", "--set", "node.id=2"),
        (
            *("kafka-configs", "--alter", "--entity-type", "brokers", "--entity-name", "1"),
            *("--add-config", "node.id=2"),
        ),
        error="INVALID_REQUEST",
        words="Cannot update these configs dynamically: ",
    )
