"""What the guide says about looking at the transactions of a prefix: its commands, run by Kafka's tools."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import asyncgroup
from asyncgroup import Cluster, Consumer, ProducerConfig, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark.sink.transactions.kafka import KafkaTransactions, slot_offsets
from asyncgroup.spark.sink.transactions.records import BatchRecord, QueryBatch, SlotTransaction
from tests.interop.java_tools import JavaTools, Output

pytestmark = pytest.mark.full

GUIDE = Path(asyncgroup.__file__).with_name("guide") / "spark-source-and-sink.md"
COMMAND = re.compile(r"`(kafka-[a-z-]+)\.sh (\w+ --|--describe )([^`]+)`")
QUERY = "4f0c1c9e-3ad2-4e0b-8a8b-2f3f6c7f1d10"
BATCH = QueryBatch(QUERY, 7)


def commands(tools: JavaTools, cluster: EmbeddedCluster) -> Mapping[str, Callable[[], Output]]:
    """Return the commands of the page, by their first word that is not an option, as functions that run them."""
    found = {}
    for tool, first, rest in COMMAND.findall(GUIDE.read_text()):
        arguments = shlex.split(first + rest)
        name = first.split()[0]
        found[name] = lambda tool=tool, arguments=arguments: tools.run(
            tool, "--bootstrap-server", cluster.bootstrap_servers, *arguments
        )
    return found


async def open_slot(client: KafkaTransactions, slot: int) -> SlotTransaction:
    """Leave a transaction of a slot open, with a record and the offset of the batch."""
    async with client.producer(slot) as producer, producer.transaction():
        await producer.send("shouted", b"x")
        await producer.send_offsets(slot_offsets("shout", slot, BATCH, "shouted"))
        detached = await producer.detach_transaction()
    return SlotTransaction(slot, *detached[1:4])


async def test_the_commands_of_the_guide(java_tools: JavaTools) -> None:
    async with EmbeddedCluster() as cluster, Cluster(cluster.bootstrap_servers) as client:
        cluster.create_topic("shouted", 1)
        run = commands(java_tools, cluster)
        assert set(run) == {"list", "describe", "--describe", "forceTerminateTransaction"}
        sink = KafkaTransactions(client, ProducerConfig(transaction_timeout=900.0), "shout")
        done, left = await open_slot(sink, 2), await open_slot(sink, 3)
        await sink.store_record(BatchRecord(BATCH, 1, (0, 0, 1, 1), (done, left), "shouted"))
        await sink.end(done, commit=True)

        async def states() -> dict[str, str]:
            listed = (await asyncio.to_thread(run["list"])).table()
            return {row["TransactionalId"]: row["TransactionState"] for row in listed}

        assert await states() == {"shout-2": "CompleteCommit", "shout-3": "Ongoing"}
        (described,) = (await asyncio.to_thread(run["describe"])).table()
        assert described["TransactionTimeoutMs"] == "900000"
        assert int(described["TransactionDurationMs"]) >= 0
        assert "shouted-0" in described["TopicPartitions"]
        async with Consumer(cluster.bootstrap_servers) as consumer:
            (stored,) = (await consumer.committed("shout-driver")).values()
        assert json.loads(stored.metadata)["query"] == QUERY
        await asyncio.to_thread(run["forceTerminateTransaction"])
        assert await states() == {"shout-2": "CompleteCommit", "shout-3": "Empty"}
        assert not (await asyncio.to_thread(run["--describe"])).text.count("shouted")
        await sink.end(await open_slot(sink, 3), commit=True)
        (row,) = (
            line.split()
            for line in (await asyncio.to_thread(run["--describe"])).lines
            if line.startswith("shout-3")
        )
        assert row[1:4] == [*map(str, TopicPartition("shouted", 0)), str(BATCH.batch_id + 1)]
