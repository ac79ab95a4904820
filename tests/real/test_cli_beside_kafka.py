"""The administrative commands beside Kafka's own tools on the same Apache Kafka: the same rows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Producer, ProducerConfig, Session
from tests.cli.admin_commands import Commands
from tests.interop.java_tools import JavaTools
from tests.real.support import NEEDS_KAFKA_4, RunningKafka

pytestmark = pytest.mark.asyncio

BORN = 1_700_000_000_000


class Beside:
    """Our commands and Kafka's tools on one cluster."""

    def __init__(self, servers: str, tools: JavaTools, capture: pytest.CaptureFixture[str]) -> None:
        self.servers = servers
        self.ours = Commands(servers, capture)
        self._tools = tools

    async def lines(self, tool: str, *arguments: str) -> list[str]:
        """Return the lines of one of Kafka's tools, which must succeed."""
        output = await self._tools(tool, "--bootstrap-server", self.servers, *arguments)
        assert output.code == 0, output.text
        return output.lines

    async def table(self, *arguments: str) -> list[dict[str, str]]:
        """Return the rows of `kafka-consumer-groups`, by heading."""
        headings, *rows = [line.split() for line in await self.lines("kafka-consumer-groups", *arguments)]
        return [dict(zip(headings, row, strict=True)) for row in rows]

    async def columns(self, *arguments: str) -> list[dict[str, str]]:
        """Return the rows of our table, by heading."""
        headings, *rows = (await self.ours.ok(*arguments)).table()
        return [dict(zip(headings, row, strict=True)) for row in rows]


@pytest.fixture
def beside(apache_kafka: RunningKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str]) -> Beside:
    return Beside(apache_kafka.bootstrap_servers, java_tools, capsys)


def unique(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


async def filled(beside: Beside) -> str:
    """A topic of three partitions with 10, 4 and no records, a second apart; the first three are deleted."""
    topic = unique("beside")
    await beside.ours.ok("topics", "create", topic, "-p", "3", "-r", "1", "--set", "retention.ms=-1")
    async with Producer(beside.servers) as producer:
        for partition, count in ((0, 10), (1, 4)):
            for number in range(count):
                await producer.send(topic, b"x", partition=partition, timestamp=BORN + 1000 * number)
    await beside.ours.ok("topics", "delete-records", f"{topic}:0", "--before", "3")
    return topic


@asynccontextmanager
async def member(beside: Beside, group: str, topic: str, protocol: str) -> AsyncIterator[None]:
    """A member that has the three partitions and reads nothing."""
    joined, claims = asyncio.Event(), set[int]()

    async def wait(_: Session, claim: Claim) -> None:
        claims.add(claim.partition)
        if len(claims) == 3:
            joined.set()
        await claim.wait_ended()

    config = ConsumerConfig(client_id="beside", group_protocol=protocol)  # type: ignore[arg-type]
    async with ConsumerGroup(beside.servers, group, config) as running, asyncio.TaskGroup() as tasks:
        tasks.create_task(running.run(topic, wait))
        await joined.wait()
        yield
        await running.aclose()


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_topics(beside: Beside) -> None:
    topic, plain = await filled(beside), unique("plain")
    await beside.ours.ok("topics", "create", plain, "-p", "1", "-r", "1")
    assert (await beside.ours.ok("topics", "list", "-q")).lines == await beside.lines(
        "kafka-topics", "--list"
    )
    ours = (await beside.ours.ok("topics", "list", "-q", "--exclude-internal")).lines
    assert ours == await beside.lines("kafka-topics", "--list", "--exclude-internal")

    head, *rows = await beside.lines("kafka-topics", "--describe", "--topic", topic)
    theirs = [re.findall(r"(?:Partition|Leader|Replicas|Isr): (\S+)", row) for row in rows]
    described = await beside.columns("topics", "describe", topic)
    names = ("PARTITION", "LEADER", "REPLICAS", "ISR")
    assert [[row[name] for name in names] for row in described] == theirs
    (listed,) = (row for row in await beside.ours.json("topics", "list") if row["topic"] == topic)
    assert listed["partitions"] == int(re.findall(r"PartitionCount: (\d+)", head)[0])

    overridden = ("--describe", "--topics-with-overrides", "--topic")
    (head,) = await beside.lines("kafka-topics", *overridden, topic)
    (row,) = await beside.ours.json("topics", "describe", topic, "--with-overrides")
    configs = dict(each.split("=") for each in re.findall(r"Configs: (\S*)", head)[0].split(","))
    # the tool also shows the defaults of the cluster (`min.insync.replicas` since Kafka 4.1)
    assert row["configs"].items() <= configs.items()
    assert row["configs"] == {"retention.ms": "-1"}
    for option, ours_option in (
        ("--under-replicated-partitions", "--under-replicated"),
        ("--unavailable-partitions", "--unavailable"),
        ("--under-min-isr-partitions", "--under-min-isr"),
        ("--at-min-isr-partitions", "--at-min-isr"),
    ):
        found = await beside.lines("kafka-topics", "--describe", "--topic", topic, option)
        rows_of_ours = await beside.ours.json("topics", "describe", topic, ours_option)
        assert [str(each["partition"]) for each in rows_of_ours] == [
            re.findall(r"Partition: (\d+)", each)[0] for each in found
        ], option


# --- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_configurations(beside: Beside) -> None:
    topic = await filled(beside)
    await beside.ours.ok("configs", "alter", "topic", topic, "--set", "cleanup.policy=[compact,delete]")
    for options, ours_options in (((), ()), (("--all",), ("--all",))):
        entity = ("--entity-type", "topics", "--entity-name", topic)
        lines = (await beside.lines("kafka-configs", "--describe", *entity, *options))[1:]
        theirs = {
            name: (value, sensitive == "true")
            for name, value, sensitive in re.findall(
                r"^ *(\S+?)=(.*?) sensitive=(\w+) synonyms", "\n".join(lines), re.MULTILINE
            )
        }
        rows = await beside.ours.json("configs", "describe", "topic", topic, *ours_options)
        ours = {row["config"]: (row["value"], row["sensitive"]) for row in rows}
        assert ours == theirs
        assert len(ours) == len(lines)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    await beside.lines(
        "kafka-configs", "--alter", *entity, "--add-config", "retention.bytes=[77],segment.ms=88"
    )
    rows = await beside.ours.json(
        "configs", "describe", "topic", topic, "--keys", "retention.bytes,segment.ms"
    )
    assert {row["config"]: row["value"] for row in rows} == {"retention.bytes": "77", "segment.ms": "88"}


@pytest.mark.full
async def test_configurations_of_a_broker(beside: Beside) -> None:
    node = str((await beside.ours.json("cluster", "describe"))[0]["node"])
    entity = ("--entity-type", "brokers", "--entity-name", node)
    lines = (await beside.lines("kafka-configs", "--describe", *entity, "--all"))[1:]
    theirs = {
        name: (None if value == "null" else value, sensitive == "true")
        for name, value, sensitive in re.findall(
            r"^ *(\S+?)=(.*?) sensitive=(\w+) synonyms", "\n".join(lines), re.MULTILINE
        )
    }
    rows = await beside.ours.json("configs", "describe", "broker", node, "--all")
    assert {row["config"]: (row["value"], row["sensitive"]) for row in rows} == theirs
    assert len(rows) == len(lines)
    assert all(row["value"] is None for row in rows if row["sensitive"])


# --- offsets ----------------------------------------------------------------------------------------------------------


async def test_offsets_of_partitions(beside: Beside) -> None:
    topic = await filled(beside)
    for words, time in (
        (("earliest",), "earliest"),
        (("latest",), "latest"),
        (("at", str(BORN + 2500)), str(BORN + 2500)),
        (("at", "max-timestamp"), "max-timestamp"),
    ):
        lines = await beside.lines("kafka-get-offsets", "--topic", topic, "--time", time)
        rows = await beside.ours.json("offsets", *words, topic)
        # the tool prints nothing after the colon for a partition without such a record, or leaves it out
        ours = [
            f"{row['topic']}:{row['partition']}:{row['offset']}" for row in rows if row["offset"] is not None
        ]
        assert ours == [line for line in lines if not line.endswith(":")], time


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_groups(beside: Beside, protocol: str) -> None:
    await groups_beside(beside, protocol)


@pytest.mark.full
async def test_groups_on_an_old_kafka(
    kafka_39: RunningKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str]
) -> None:
    await groups_beside(Beside(kafka_39.bootstrap_servers, java_tools, capsys), "classic")


async def groups_beside(beside: Beside, protocol: str) -> None:
    """Compare the lag, members and state of a group, and the list of groups."""
    topic, group = await filled(beside), unique(protocol)
    await beside.ours.ok("offsets", "alter", group, f"{topic}:0=4", f"{topic}:1=0")
    async with member(beside, group, topic, protocol):
        theirs = await beside.table("--describe", "--group", group, "--offsets")
        ours = await beside.columns("groups", "lag", group)
        assert len(ours) == 3
        names = (
            *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
            *("CONSUMER-ID", "HOST", "CLIENT-ID"),
        )
        by_partition = sorted(theirs, key=lambda row: int(row["PARTITION"]))
        assert ours == [{name: row[name] for name in names} for row in by_partition]

        (theirs_member,) = await beside.table("--describe", "--group", group, "--members")
        (row,) = await beside.columns("groups", "describe", group, "--members")
        for name in ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"):
            assert row[name] == theirs_member[name]

        (state,) = await beside.table("--describe", "--group", group, "--state")
        (row,) = await beside.columns("groups", "describe", group)
        assert (row["COORDINATOR"], row["STATE"], row["#MEMBERS"], row["ASSIGNOR"]) == (
            state["(ID)"].strip("()"),
            state["STATE"],
            state["#MEMBERS"],
            state["ASSIGNMENT-STRATEGY"],
        )
        listed = await beside.table("--list", "--state")
        rows = await beside.columns("groups", "list")
        assert {(row["GROUP"], row["STATE"]) for row in listed} == {
            (row["GROUP"], row["STATE"])
            for row in rows
            if row["TYPE"] != "share"  # other tests have left some
        }


@pytest.mark.full
async def test_a_plan_and_its_csv(beside: Beside) -> None:
    topic, group = await filled(beside), unique("g")
    await beside.ours.ok("offsets", "alter", group, f"{topic}:0=4", f"{topic}:1=0")
    arguments = ("--reset-offsets", "--group", group, "--all-topics", "--to-latest")
    theirs = await beside.table(*arguments, "--dry-run")
    rows = (await beside.ours("groups", "reset", group, "--to-latest", "--all-topics", "--json")).rows
    assert sorted((row["TOPIC"], int(row["PARTITION"]), int(row["NEW-OFFSET"])) for row in theirs) == [
        (row["topic"], row["partition"], row["new_offset"]) for row in rows
    ]
    ours = await beside.ours("groups", "reset", group, "--to-current", "--all-topics", "--export")
    exported = await beside.lines(
        "kafka-consumer-groups", *arguments[:4], "--to-current", "--export", "--dry-run"
    )
    assert sorted(ours.lines) == sorted(line for line in exported if "," in line and " " not in line)


# --- transactions and the cluster -------------------------------------------------------------------------------------


@pytest.mark.full
async def test_transactions(beside: Beside) -> None:
    topic, name = await filled(beside), unique("tx")
    async with (
        Producer(beside.servers, ProducerConfig(transactional_id=name)) as producer,
        producer.transaction(),
    ):
        await producer.send(topic, b"x", partition=2)
        output = await beside._tools("kafka-transactions", "--bootstrap-server", beside.servers, "list")
        (theirs,) = (row for row in output.table() if row["TransactionalId"] == name)
        (ours,) = (
            row for row in await beside.ours.json("transactions", "list") if row["transactional_id"] == name
        )
        assert {key: str(value) for key, value in ours.items()} == {
            "transactional_id": name,
            "coordinator": theirs["Coordinator"],
            "producer_id": theirs["ProducerId"],
            "state": theirs["TransactionState"],
        }
        arguments = ("describe-producers", "--topic", topic, "--partition", "2")
        output = await beside._tools("kafka-transactions", "--bootstrap-server", beside.servers, *arguments)
        (theirs,) = output.table()
        (ours,) = await beside.ours.json("transactions", "producers", f"{topic}:2")
        assert [
            str(ours[key]) for key in ("producer_id", "producer_epoch", "last_sequence", "start_offset")
        ] == [
            theirs[name]
            for name in ("ProducerId", "ProducerEpoch", "LastSequence", "CurrentTransactionStartOffset")
        ]


@pytest.mark.full
async def test_log_directories(beside: Beside) -> None:
    topic = await filled(beside)
    lines = await beside.lines("kafka-log-dirs", "--describe", "--topic-list", topic)
    found = re.findall(r'"partition":"(\S+?)","size":(\d+),"offsetLag":(\d+)', lines[-1])
    theirs = {(place, int(size), int(lag)) for place, size, lag in found}
    rows = await beside.ours.json("cluster", "log-dirs", topic, "--replicas")
    assert {(f"{row['topic']}-{row['partition']}", row["size"], row["offset_lag"]) for row in rows} == theirs
    assert len(rows) == 3


@pytest.mark.full
async def test_features_and_quorum(beside: Beside) -> None:
    lines = await beside.lines("kafka-features", "describe")
    pattern = r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)"
    theirs = {name: rest for name, *rest in re.findall(pattern, "\n".join(lines))}
    rows = await beside.ours.json("cluster", "features")
    names = ("feature", "min_supported", "max_supported", "level")
    # the tool writes a level of metadata.version as the release that it belongs to, and 0 for a feature that is not in use
    ours = {
        name: [least, most, level or 0]
        for name, least, most, level in ([row[key] for key in names] for row in rows)
    }
    assert sorted(ours) == sorted(theirs)
    for name, found in theirs.items():
        if name != "metadata.version":
            assert [str(each) for each in ours[name]] == found

    output = await beside.lines("kafka-metadata-quorum", "describe", "--replication")
    headings, *replicas = [line.split("\t") for line in output]
    quorum = [dict(zip((each.strip() for each in headings), row, strict=False)) for row in replicas]
    mine = await beside.ours.json("cluster", "quorum")
    assert [(str(row["node"]), row["role"]) for row in mine] == [
        (row["NodeId"].strip(), row["Status"].strip().lower()) for row in quorum
    ]
    assert all(row["lag"] is not None for row in mine)
