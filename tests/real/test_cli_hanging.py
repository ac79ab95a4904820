"""`asyncgroup transactions find-hanging`, `producers` and `abort` beside `kafka-transactions` on the same Apache Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import TopicPartition
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.beside_kafka import Beside, beside_39, beside_breakable, unique
from tests.real.test_admin_transactions import HANGING, VERIFICATION, hang, transaction

__all__ = ["beside_39", "beside_breakable"]

pytestmark = pytest.mark.full

COLUMNS = {
    "topic": "Topic",
    "partition": "Partition",
    "producer_id": "ProducerId",
    "producer_epoch": "ProducerEpoch",
    "coordinator_epoch": "CoordinatorEpoch",
    "start_offset": "StartOffset",
    "last_timestamp": "LastTimestamp",
}


@asynccontextmanager
async def hanging(beside: Beside, kafka: ApacheKafka) -> AsyncIterator[str]:
    """A topic with an open transaction in partition 0, and one that hangs in each of the next two."""
    topic = unique("hanging")
    await beside.ours.ok("topics", "create", topic, "-p", "3", "-r", "1")
    async with transaction(beside.servers, topic, topic):  # the first one creates Kafka's topic for them
        await beside.ours.ok("configs", "alter", "broker", "1", "--set", f"{VERIFICATION}=false")
        try:
            for partition in (1, 2):
                await hang(kafka, TopicPartition(topic, partition), HANGING + partition)
        finally:
            await beside.ours.ok("configs", "alter", "broker", "1", "--delete", VERIFICATION)
        yield topic


def shown(row: dict[str, Any]) -> dict[str, str]:
    """Return our row with the tool's headings; it has -1 for what is absent."""
    return {title: str(-1 if row[key] is None else row[key]) for key, title in COLUMNS.items()}


async def test_hanging_transactions(beside_breakable: Beside, kafka_to_break: ApacheKafka) -> None:
    await hanging_transactions(beside_breakable, kafka_to_break)


async def test_hanging_transactions_of_an_old_kafka(beside_39: Beside, kafka_39: ApacheKafka) -> None:
    await hanging_transactions(beside_39, kafka_39)


async def hanging_transactions(beside: Beside, kafka: ApacheKafka) -> None:
    """Compare those that are found, and the producers of their partitions; abort one with each command."""

    async def by_tool(*options: str) -> list[dict[str, str]]:
        """Return the rows of the tool, which are in no order."""
        rows = await beside.transactions("find-hanging", *options)
        return sorted(rows, key=lambda row: (row["Topic"], int(row["Partition"])))

    async def found() -> list[str]:
        """Return the partitions with a hanging transaction, which both commands find."""
        theirs = await by_tool("--topic", topic)
        ours = await beside.ours.json("transactions", "find-hanging", topic)
        assert [shown(row) for row in ours] == [
            {title: row[title] for title in COLUMNS.values()} for row in theirs
        ]
        # the tool counts minutes
        for row, their_row in zip(ours, theirs, strict=True):
            assert abs(row["duration"] / 60 - int(their_row["Duration(min)"])) < 2
        return [row["Partition"] for row in theirs]

    async with hanging(beside, kafka) as topic:
        assert await found() == ["1", "2"]
        broker = await by_tool("--broker-id", "1")
        ours = await beside.ours.json("transactions", "find-hanging", "--broker", "1")
        assert [shown(row) for row in ours] == [
            {title: row[title] for title in COLUMNS.values()} for row in broker
        ]
        for partition in ("0", "1"):
            (theirs,) = await beside.transactions(
                "describe-producers", "--topic", topic, "--partition", partition
            )
            (row,) = await beside.ours.json("transactions", "producers", f"{topic}:{partition}")
            assert theirs == {
                "ProducerId": str(row["producer_id"]),
                "ProducerEpoch": str(row["producer_epoch"]),
                "LatestCoordinatorEpoch": str(
                    -1 if row["coordinator_epoch"] is None else row["coordinator_epoch"]
                ),
                "LastSequence": str(row["last_sequence"]),
                "LastTimestamp": str(row["last_timestamp"]),
                "CurrentTransactionStartOffset": str(row["start_offset"]),
            }

        tool = ("kafka-transactions", "abort", "--topic", topic, "--partition")
        await beside.both_refuse(
            ("transactions", "abort", f"{topic}:1", "--start-offset", "7"),
            (*tool, "1", "--start-offset", "7"),
            error="ConfigError",
            words="the first offset of an open transaction",
            their_words="Could not find any open transactions starting at offset 7",
        )
        # the producer has a newer epoch
        await beside.both_refuse(
            (
                *("transactions", "abort", f"{topic}:1", "--producer-id", str(HANGING + 1)),
                *("--producer-epoch", "2"),
            ),
            (
                *(*tool, "1", "--producer-id", str(HANGING + 1)),
                *("--producer-epoch", "2", "--coordinator-epoch", "0"),
            ),
            error="INVALID_PRODUCER_EPOCH",
            words=f"{topic}-1",
            their_words="failed due an invalid producer epoch",
        )
        aborted = await beside.ours.json("transactions", "abort", f"{topic}:1", "--start-offset", "0")
        assert aborted == [{"topic": topic, "partition": 1, "status": "aborted", "error": None}]
        assert await found() == ["2"]
        await beside.lines(*tool, "2", "--start-offset", "0")
        assert await found() == []
