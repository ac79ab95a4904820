"""Kafka 4.3.1's own command-line tools against the embedded cluster, from the original jars, in one JVM."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session
from asyncgroup.broker import EmbeddedCluster
from tests.interop.java_tools import JavaTools, Output
from tests.interop.waiting import until

TOPIC = "orders"


class ClusterTools(NamedTuple):
    """A cluster of three nodes, and the tools, called with its bootstrap servers."""

    cluster: EmbeddedCluster
    tools: JavaTools

    async def __call__(self, tool: str, *arguments: str, typed: str = "") -> Output:
        servers = ("--bootstrap-server", self.cluster.bootstrap_servers)
        return await self.tools(tool, *servers, *arguments, typed=typed)

    async def checked(self, tool: str, *arguments: str, typed: str = "") -> Output:
        """Run a tool that must succeed."""
        output = await self(tool, *arguments, typed=typed)
        assert output.code == 0, output.text
        return output


@contextlib.asynccontextmanager
async def started(tools: JavaTools) -> AsyncIterator[ClusterTools]:
    async with EmbeddedCluster(nodes=3) as cluster:
        yield ClusterTools(cluster, tools)


# -- topics -------------------------------------------------------------------------------------------------------


SLEEPER = """
public class Sleeper {
    public static void main(String[] arguments) throws Exception {
        System.out.println("begun");
        Thread.sleep(60_000);
    }
}
"""


@pytest_asyncio.fixture
async def run(java_tools: JavaTools) -> AsyncIterator[ClusterTools]:
    """The tools of Apache Kafka with an embedded cluster."""
    async with started(java_tools) as run:
        yield run


@pytest.mark.full
async def test_a_program_that_takes_too_long_is_described(java_tools: JavaTools, tmp_path: Path) -> None:
    (tmp_path / "Sleeper.java").write_text(SLEEPER)
    with pytest.raises(TimeoutError, match="Sleeper") as caught:
        await java_tools(tmp_path / "Sleeper.java", "once", limit=8.0)
    message = str(caught.value)
    assert "Sleeper.java once took longer than 8 s\nbegun\n" in message
    assert "at Sleeper.main(Sleeper.java:5)" in message


async def test_topics_are_created_described_altered_and_deleted(java_tools: JavaTools) -> None:
    async with started(java_tools) as run:
        made = (
            "--topic",
            TOPIC,
            "--partitions",
            "4",
            "--replication-factor",
            "2",
            "--config",
            "retention.ms=100000",
        )
        assert (await run.checked("kafka-topics", "--create", *made)).lines == [f"Created topic {TOPIC}."]
        again = await run("kafka-topics", "--create", *made)
        assert again.code == 1
        assert "already exists" in again.text
        assert (await run.checked("kafka-topics", "--list")).lines == [TOPIC]
        head, *rows = (await run.checked("kafka-topics", "--describe", "--topic", TOPIC)).lines
        assert "PartitionCount: 4\tReplicationFactor: 2" in head
        assert "retention.ms=100000" in head
        leaders = [run.cluster.leader(TOPIC, number) for number in range(4)]
        assert [
            f"Partition: {n}\tLeader: {leader}" in row
            for n, (leader, row) in enumerate(zip(leaders, rows, strict=True))
        ]
        await run.checked("kafka-topics", "--alter", "--topic", TOPIC, "--partitions", "6")
        assert len(run.cluster.topic(TOPIC).partitions) == 6
        fewer = await run("kafka-topics", "--alter", "--topic", TOPIC, "--partitions", "2")
        assert fewer.code == 1
        assert "currently has 6 partition" in fewer.text or "6 partitions" in fewer.text
        await run.checked("kafka-topics", "--delete", "--topic", TOPIC)
        assert (await run.checked("kafka-topics", "--list")).lines == []
        assert (await run("kafka-topics", "--describe", "--topic", TOPIC)).code == 1


async def test_under_replicated_partitions_are_found(run: ClusterTools, java_tools: JavaTools) -> None:
    run.cluster.create_topic(TOPIC, 2, 3)
    assert (await run.checked("kafka-topics", "--describe", "--under-replicated-partitions")).lines == []
    await run.cluster.stop_node(3)
    assert len((await run.checked("kafka-topics", "--describe", "--under-replicated-partitions")).lines) == 2


# -- records ------------------------------------------------------------------------------------------------------


async def produce(run: ClusterTools, first: int, count: int) -> set[str]:
    lines = [f"key-{number}:value-{number}" for number in range(first, first + count)]
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    await run.checked("kafka-console-producer", "--topic", TOPIC, *keyed, typed="\n".join(lines) + "\n")
    return set(lines)


async def consume(run: ClusterTools, count: int, *more: str) -> set[str]:
    keyed = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:")
    enough = ("--max-messages", str(count), "--timeout-ms", "20000")
    read = await run.checked("kafka-console-consumer", "--topic", TOPIC, *keyed, *enough, *more)
    return {line for line in read.lines if line.startswith("key-")}


async def test_console_producer_and_consumer_in_a_group_that_resumes(java_tools: JavaTools) -> None:
    async with started(java_tools) as run:
        run.cluster.create_topic(TOPIC, 4)
        wanted = await produce(run, 0, 50)
        assert {f"{r.key!s}" for r in run.cluster.records(TOPIC)} == {
            f"{k.split(':')[0].encode()!s}" for k in wanted
        }
        group = ("--group", "console", "--from-beginning")
        assert await consume(run, 50, *group) == wanted
        assert sum(offset.offset for offset in run.cluster.group("console").offsets.values()) == 50
        later = await produce(run, 50, 10)
        assert await consume(run, 10, *group) == later
        committed = ("--isolation-level", "read_committed", "--partition", "0", "--offset", "earliest")
        first = {
            f"{r.key.decode()}:{r.value.decode()}" for r in run.cluster.records(TOPIC, 0) if r.key and r.value
        }
        assert await consume(run, len(first), *committed) == first


class Quiet(Handler):
    """Marks every record."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)


@contextlib.asynccontextmanager
async def members(cluster: EmbeddedCluster, group_id: str, *names: str) -> AsyncIterator[None]:
    """Run members of asyncgroup in a group, which is stable when the block begins."""
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            config = ConsumerConfig(client_id=name, auto_offset_reset="earliest", heartbeat_interval=0.2)
            group = await stack.enter_async_context(
                ConsumerGroup(cluster.bootstrap_servers, group_id, config)
            )
            running = asyncio.create_task(group.run(TOPIC, Quiet()))
            stack.push_async_callback(asyncio.wait, [running])
            stack.push_async_callback(group.aclose)
        await until(lambda: is_stable(cluster, group_id, len(names)))
        yield


def is_stable(cluster: EmbeddedCluster, group_id: str, count: int) -> bool:
    view = cluster.group(group_id)
    return (
        view.state == "Stable"
        and len(view.members) == count
        and all(m.assignment for m in view.members.values())
    )


async def test_a_console_consumer_joins_a_group_of_asyncgroup(java_tools: JavaTools) -> None:
    async with started(java_tools) as run:
        run.cluster.create_topic(TOPIC, 4)
        assignor = "partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor"
        quick = ("--command-property", assignor, "--command-property", "heartbeat.interval.ms=200")
        async with members(run.cluster, "shared", "ours"):
            one = ("--group", "shared", "--max-messages", "1", "--timeout-ms", "20000", *quick)
            reading = asyncio.create_task(run("kafka-console-consumer", "--topic", TOPIC, *one))
            await until(lambda: is_stable(run.cluster, "shared", 2) or reading.done())
            view = run.cluster.group("shared")
            assert sorted(len(member.assignment[TOPIC]) for member in view.members.values()) == [2, 2]
            await produce(run, 0, 40)  # the console consumer leaves after its first record
            assert (await reading).code == 0
            await until(lambda: is_stable(run.cluster, "shared", 1))


# -- groups -------------------------------------------------------------------------------------------------------


async def test_groups_are_listed_and_described(run: ClusterTools, java_tools: JavaTools) -> None:
    run.cluster.create_topic(TOPIC, 4)
    await produce(run, 0, 20)
    async with members(run.cluster, "readers", "one", "two"):
        await until(lambda: sum(o.offset for o in run.cluster.group("readers").offsets.values()) == 20)
        assert (await run.checked("kafka-consumer-groups", "--list")).lines == ["readers"]
        listed = (await run.checked("kafka-consumer-groups", "--list", "--state", "stable")).table()
        assert listed == [{"GROUP": "readers", "STATE": "Stable"}]
        assert (await run.checked("kafka-consumer-groups", "--list", "--state", "empty")).table() == []
        about = ("--describe", "--group", "readers")
        offsets = (await run.checked("kafka-consumer-groups", *about)).table()
        assert sum(int(row["CURRENT-OFFSET"]) for row in offsets) == 20
        assert {row["LAG"] for row in offsets} == {"0"}
        assert {row["CLIENT-ID"] for row in offsets} == {"one", "two"}
        found = (await run.checked("kafka-consumer-groups", *about, "--members")).table()
        assert {(row["CLIENT-ID"], row["#PARTITIONS"]) for row in found} == {("one", "2"), ("two", "2")}
        verbose = (await run.checked("kafka-consumer-groups", *about, "--members", "--verbose")).text
        assert f"{TOPIC}:0,1" in verbose.replace("(", ":").replace(")", "")
        state = (await run.checked("kafka-consumer-groups", *about, "--state")).text
        node = run.cluster.nodes[run.cluster.coordinator("readers")]
        assert f"{node.advertised_host}:{node.port}" in state
        assert "range" in state
        assert "Stable" in state
        for refused in (
            ("--delete",),
            ("--reset-offsets", "--to-earliest", "--topic", TOPIC, "--execute"),
        ):
            answer = await run("kafka-consumer-groups", "--group", "readers", *refused)
            assert "Error" in answer.text
    gone = (await run("kafka-consumer-groups", "--describe", "--group", "nobody")).text
    assert "does not exist" in gone or "not found" in gone


async def test_offsets_are_reset_deleted_and_groups_removed(run: ClusterTools, java_tools: JavaTools) -> None:
    run.cluster.create_topic(TOPIC, 2)
    await produce(run, 0, 20)
    await consume(run, 20, "--group", "readers", "--from-beginning")
    ends = {str(n): run.cluster.partition(TOPIC, n).log_end_offset for n in (0, 1)}

    async def reset(*how: str, topic: str = TOPIC) -> dict[str, int]:
        what = ("--group", "readers", "--reset-offsets", "--topic", topic)
        rows = (await run.checked("kafka-consumer-groups", *what, *how)).table()
        return {row["PARTITION"]: int(row["NEW-OFFSET"]) for row in rows}

    def committed() -> dict[str, int]:
        return {str(tp.partition): o.offset for tp, o in run.cluster.group("readers").offsets.items()}

    assert await reset("--to-earliest", "--dry-run") == {"0": 0, "1": 0}
    assert committed() == ends
    for how, wanted in (
        (("--to-earliest",), dict.fromkeys(ends, 0)),
        (("--shift-by", "2"), dict.fromkeys(ends, 2)),
        (("--to-offset", "3"), dict.fromkeys(ends, 3)),
        (("--to-datetime", "2020-01-01T00:00:00.000"), dict.fromkeys(ends, 0)),
        (("--by-duration", "P1D"), dict.fromkeys(ends, 0)),
        (("--to-latest",), ends),
    ):
        assert await reset(*how, "--execute") == wanted
        assert committed() == wanted
    assert await reset("--shift-by", "-1", "--execute", topic=f"{TOPIC}:0") == {"0": ends["0"] - 1}
    deleted = await run(
        "kafka-consumer-groups", "--group", "readers", "--delete-offsets", "--topic", f"{TOPIC}:0"
    )
    assert "Successful" in deleted.text
    assert set(committed()) == {"1"}
    removed = await run.checked("kafka-consumer-groups", "--group", "readers", "--delete")
    assert "was successful" in removed.text
    assert run.cluster.groups == []
    assert (
        "could not be deleted" in (await run("kafka-consumer-groups", "--group", "readers", "--delete")).text
    )


# -- performance --------------------------------------------------------------------------------------------------


async def test_the_performance_tools(run: ClusterTools, java_tools: JavaTools) -> None:
    run.cluster.create_topic(TOPIC, 3)
    amount = ("--topic", TOPIC, "--num-records", "3000", "--record-size", "100", "--throughput", "-1")
    packed = ("--command-property", "compression.type=lz4", "--command-property", "acks=1")
    assert "3000 records sent" in (await run.checked("kafka-producer-perf-test", *amount, *packed)).text
    transactions = ("--transactional-id", "perf", "--transaction-duration-ms", "20")
    assert "3000 records sent" in (await run.checked("kafka-producer-perf-test", *amount, *transactions)).text
    assert len(run.cluster.records(TOPIC)) == 6000
    all_of_it = ("--topic", TOPIC, "--num-records", "6000", "--timeout", "20000", "--group", "perf")
    read = (await run.checked("kafka-consumer-perf-test", *all_of_it)).lines[-1]
    assert int(read.split(", ")[4]) == 6000


# -- administration -----------------------------------------------------------------------------------------------


async def test_settings_are_described_and_altered(run: ClusterTools, java_tools: JavaTools) -> None:
    run.cluster.create_topic(TOPIC, 1, configs={"retention.ms": "7000"})
    topic = ("--entity-type", "topics", "--entity-name", TOPIC)
    assert "retention.ms=7000" in (await run.checked("kafka-configs", "--describe", *topic)).text
    changed = (
        "--add-config",
        "cleanup.policy=compact,max.message.bytes=2000",
        "--delete-config",
        "retention.ms",
    )
    await run.checked("kafka-configs", "--alter", *topic, *changed)
    shown = (await run.checked("kafka-configs", "--describe", *topic)).text
    assert "cleanup.policy=compact" in shown
    assert "max.message.bytes=2000" in shown
    assert "retention.ms" not in shown
    wrong = await run("kafka-configs", "--alter", *topic, "--add-config", "retention.ms=soon")
    assert wrong.code == 1
    assert "retention.ms" in wrong.text
    node = (
        await run.checked(
            "kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all"
        )
    ).text
    assert "broker.id=1" in node or "node.id=1" in node


async def test_offsets_are_looked_up_and_records_deleted(java_tools: JavaTools, tmp_path: Path) -> None:
    async with started(java_tools) as run:
        run.cluster.create_topic(TOPIC, 2)
        await produce(run, 0, 20)
        ends = {f"{TOPIC}:{n}:{run.cluster.partition(TOPIC, n).log_end_offset}" for n in (0, 1)}
        assert set((await run.checked("kafka-get-offsets", "--topic", TOPIC)).lines) == ends
        wanted = tmp_path / "offsets.json"
        wanted.write_text(
            json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": 3}]})
        )
        deleted = await run.checked("kafka-delete-records", "--offset-json-file", str(wanted))
        assert "low_watermark: 3" in deleted.text
        earliest = (await run.checked("kafka-get-offsets", "--topic", TOPIC, "--time", "earliest")).lines
        assert set(earliest) == {f"{TOPIC}:0:3", f"{TOPIC}:1:0"}


async def test_transactions_are_listed_and_described(run: ClusterTools, java_tools: JavaTools) -> None:
    run.cluster.create_topic(TOPIC, 1)
    amount = ("--topic", TOPIC, "--num-records", "10", "--record-size", "10", "--throughput", "-1")
    await run.checked("kafka-producer-perf-test", *amount, "--transactional-id", "perf")
    (row,) = (await run.checked("kafka-transactions", "list")).table()
    assert (row["TransactionalId"], row["TransactionState"]) == ("perf", "CompleteCommit")
    (one,) = (await run.checked("kafka-transactions", "describe", "--transactional-id", "perf")).table()
    assert int(one["ProducerId"]) == run.cluster.transactions["perf"].producer_id
    partition = ("--topic", TOPIC, "--partition", "0")
    (producer,) = (await run.checked("kafka-transactions", "describe-producers", *partition)).table()
    assert (producer["ProducerId"], producer["CurrentTransactionStartOffset"]) == (
        row["ProducerId"],
        "None",
    )


async def test_leader_election_and_reassignment(java_tools: JavaTools, tmp_path: Path) -> None:
    async with started(java_tools) as run:
        run.cluster.create_topic(TOPIC, 1, 3)
        first = run.cluster.leader(TOPIC, 0)
        other = next(node for node in (1, 2, 3) if node != first)
        run.cluster.move_leader(TOPIC, 0, other)
        partition = ("--topic", TOPIC, "--partition", "0")
        elected = await run.checked("kafka-leader-election", "--election-type", "preferred", *partition)
        assert "Successfully completed leader election" in elected.text
        assert run.cluster.leader(TOPIC, 0) == first
        plan = tmp_path / "plan.json"
        plan.write_text(
            json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "replicas": [other]}]})
        )
        await run.checked("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
        verified = await run.checked(
            "kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--verify"
        )
        assert "is completed" in verified.text
        assert run.cluster.leader(TOPIC, 0) == other
        dirs = (await run.checked("kafka-log-dirs", "--describe", "--topic-list", TOPIC)).text
        assert f"{TOPIC}-0" in dirs
