"""`asyncgroup cluster` beside Kafka's own tools on three nodes: brokers, log directories, elections, reassignments; features on one."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Producer
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.beside_kafka import Beside, beside_3, beside_39, beside_breakable, unique
from tests.real.support import IS_NEWEST_RELEASE, NEEDS_KAFKA_4, until_shown

__all__ = ["beside_3", "beside_39", "beside_breakable"]

pytestmark = pytest.mark.full


@NEEDS_KAFKA_4
async def test_brokers(beside_3: Beside) -> None:
    await brokers_beside(beside_3, "--include-fenced")


async def test_the_broker_of_an_old_kafka(beside_39: Beside) -> None:
    await brokers_beside(beside_39)


async def brokers_beside(beside: Beside, *options: str) -> None:
    """Compare the brokers and the id of the cluster; before Kafka 4.0 only those that are not fenced."""
    their_options = ("--include-fenced-brokers",) if options else ()

    async def different() -> list[tuple[dict[str, str], dict[str, str]]]:
        """Return the brokers that the commands describe differently: they may have asked two brokers."""
        headings, *lines = await beside.lines("kafka-cluster", "list-endpoints", *their_options)
        names = [name for name in ("ID", "HOST", "PORT", "RACK", "STATE") if name in headings.split()]
        theirs = [dict(zip(headings.split(), line.split(), strict=True)) for line in lines]
        ours = [
            {
                "ID": str(row["node"]),
                "HOST": row["host"],
                "PORT": str(row["port"]),
                "RACK": str(row["rack"] or "null"),
                "STATE": "fenced" if row["fenced"] else "unfenced",
            }
            for row in await beside.ours.json("cluster", "describe", *options)
        ]
        assert ours
        pairs = itertools.zip_longest(ours, theirs, fillvalue={})
        return [
            (mine, other) for mine, other in pairs if any(mine.get(name) != other.get(name) for name in names)
        ]

    await until_shown(different, [])
    (line,) = await beside.lines("kafka-cluster", "cluster-id")
    rows = await beside.ours.json("cluster", "describe", *options)
    assert {row["cluster_id"] for row in rows} == {line.removeprefix("Cluster ID: ")}


async def moved(beside: Beside, size: int = 0) -> str:
    """A topic with its first partition on the nodes 1 and 2, and the second one on 3 and 1; in the first `size` MB of records."""
    topic = unique("cluster")
    await beside.ours.ok("topics", "create", topic, "--replica-assignment", "1:2,3:1")
    async with Producer(beside.servers) as producer:
        for _ in range(10 * size):
            await producer.send(topic, b"x" * 100_000, partition=0)
    return topic


async def test_log_directories_of_nodes(beside_3: Beside) -> None:
    topic = await moved(beside_3, 1)

    async def theirs() -> list[dict[str, Any]]:
        *_, line = await beside_3.lines("kafka-log-dirs", "--describe", "--topic-list", topic)
        return [
            {
                "node": each["broker"],
                "path": one["logDir"],
                "replicas": len(one["partitions"]),
                "size": sum(part["size"] for part in one["partitions"]),
                "error": one["error"],
            }
            for each in json.loads(line)["brokers"]
            for one in each["logDirs"]
        ]

    async def replicas() -> list[int]:
        """Return the number of replicas of each node, which creates them after it knows the topic."""
        return [row["replicas"] for row in await beside_3.ours.json("cluster", "log-dirs", topic)]

    await until_shown(replicas, [2, 1, 1])
    keys = ("node", "path", "replicas", "size", "error")
    rows = await beside_3.ours.json("cluster", "log-dirs", topic)
    ours = [{key: row[key] for key in keys} for row in rows]
    assert ours == await theirs()
    one = await beside_3.ours.json("cluster", "log-dirs", topic, "--broker", "2")
    assert [{key: row[key] for key in keys} for row in one] == ours[1:2]


async def test_what_a_dead_node_leaves(beside_3: Beside, apache_kafka_3: ApacheKafka) -> None:
    """Compare partitions without a leader or with too few replicas in sync, failing elections, and a broker that is fenced."""
    quorum = await beside_3.ours.json("cluster", "quorum")
    (leader,) = (row["node"] for row in quorum if row["role"] == "leader")
    dead, other = (node for node in (1, 2, 3) if node != leader)
    alone, short, full = (unique(name) for name in ("alone", "short", "full"))
    for topic, nodes, least in ((alone, (dead,), 1), (short, (leader, dead), 2), (full, (leader, other), 2)):
        created = ("topics", "create", topic, "--replica-assignment", ":".join(map(str, nodes)))
        await beside_3.ours.ok(*created, "--set", f"min.insync.replicas={least}")

    async def filtered(
        option: str, their_option: str, *topics: str
    ) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """Return the partitions that only one of the commands lists, and those of these topics that both list."""
        lines = await beside_3.lines("kafka-topics", "--describe", their_option)
        theirs = {re.findall(r"Topic: (\S+)\s+.*Partition: (\d+)", line)[0] for line in lines}
        rows = await beside_3.ours.json("topics", "describe", option)
        ours = {(row["topic"], str(row["partition"])) for row in rows}
        return ours ^ theirs, {each for each in ours & theirs if each[0] in topics}

    async def cell(topic: str, name: str) -> str | None:
        """Return a cell of the only partition, None if the commands differ."""
        _, (theirs,) = await beside_3.described(topic)
        (row,) = await beside_3.columns("topics", "describe", topic, "--wide")
        return theirs[name] if {name: row[name] for name in theirs} == theirs else None

    await asyncio.to_thread(apache_kafka_3.kill, dead)
    try:
        # since Kafka 4.1 the ISR of a partition without a leader is empty, and the node is an eligible leader replica
        await until_shown(lambda: cell(alone, "LEADER"), "-")
        await until_shown(lambda: cell(short, "ISR"), str(leader))
        for option, their_option, topics in (
            ("--unavailable", "--unavailable-partitions", [alone]),
            ("--under-replicated", "--under-replicated-partitions", [short]),
            ("--under-min-isr", "--under-min-isr-partitions", [short, alone]),  # the latter has no leader
            ("--at-min-isr", "--at-min-isr-partitions", [full]),
        ):
            # the commands may have asked two brokers
            expected = set[tuple[str, str]](), {(topic, "0") for topic in topics}
            await until_shown(partial(filtered, option, their_option, *topics), expected)
        if IS_NEWEST_RELEASE:
            await brokers_beside(beside_3, "--include-fenced")
        election, partition = ("kafka-leader-election", "--election-type"), ("--partition", "0")
        await beside_3.both_refuse(
            ("cluster", "elect-leaders", f"{alone}:0"),
            (*election, "preferred", "--topic", alone, *partition),
            error="PREFERRED_LEADER_NOT_AVAILABLE",
            words=f"{alone}-0",
        )
        await beside_3.both_refuse(
            ("cluster", "elect-leaders", f"{alone}:0", "--unclean"),
            (*election, "unclean", "--topic", alone, *partition),
            error="ELIGIBLE_LEADERS_NOT_AVAILABLE",
            words=f"{alone}-0",
        )
    finally:
        await asyncio.to_thread(apache_kafka_3.start_node, dead)


# --- leaders and replicas ---------------------------------------------------------------------------------------------


async def test_elections(beside_3: Beside) -> None:
    topic = await moved(beside_3)
    place = f"{topic}:0"
    row = {"topic": topic, "partition": 0, "error": None}
    tool = ("kafka-leader-election", "--election-type")
    partition = ("--topic", topic, "--partition")

    async def leader() -> str:
        """Return the leader of the first partition, which both commands show."""
        _, line, _ = await beside_3.lines("kafka-topics", "--describe", "--topic", topic)
        (found,) = re.findall(r"Leader: (\S+)", line)
        ours = (await beside_3.columns("topics", "describe", topic))[0]["LEADER"]
        return found if ours == found else ""

    async def prefer(node: int, *others: int) -> None:
        nodes = ",".join(map(str, (node, *others)))
        (begun,) = await beside_3.ours.json("cluster", "reassign", f"{place}={nodes}")
        assert begun == {**row, "replicas": [node, *others], "status": "begun"}

    assert await leader() == "1"
    await prefer(2, 1)  # the leader stays: its replica only is no longer the first one
    assert await beside_3.ours.json("cluster", "elect-leaders", place) == [{**row, "status": "elected"}]
    await until_shown(leader, "2")
    assert await beside_3.lines(*tool, "preferred", *partition, "0") == [
        f"Valid replica already elected for partitions {topic}-0"
    ]
    await prefer(1, 2)
    assert await beside_3.lines(*tool, "preferred", *partition, "0") == [
        f"Successfully completed leader election (PREFERRED) for partitions {topic}-0"
    ]
    await until_shown(leader, "1")
    assert await beside_3.ours.json("cluster", "elect-leaders", place) == [{**row, "status": "unchanged"}]
    # all that need it: other topics as well, if nodes were restarted; their replicas must be in sync again
    await until_shown(lambda: beside_3.ours.json("topics", "describe", "--under-replicated"), [])
    await prefer(2, 1)
    rows = await beside_3.ours.json("cluster", "elect-leaders")
    assert {**row, "status": "elected"} in rows
    await until_shown(leader, "2")
    assert await beside_3.lines(*tool, "preferred", "--all-topic-partitions") == []
    assert await beside_3.ours.json("cluster", "elect-leaders") == []
    # a partition with a leader needs no unclean election
    assert await beside_3.ours.json("cluster", "elect-leaders", place, "--unclean") == [
        {**row, "status": "unchanged"}
    ]
    assert await beside_3.lines(*tool, "unclean", *partition, "0") == [
        f"Valid replica already elected for partitions {topic}-0"
    ]
    await beside_3.both_refuse(
        ("cluster", "elect-leaders", f"{topic}:9"),
        (*tool, "preferred", *partition, "9"),
        error="UNKNOWN_TOPIC_OR_PARTITION",
        words=f"No such partition as {topic}-9",
    )


async def test_reassignments(beside_3: Beside, tmp_path: Path) -> None:
    """Begin, list and cancel a reassignment with each command; a throttle keeps it in progress."""
    topic = await moved(beside_3, 3)
    place = f"{topic}:0"
    row = {"topic": topic, "partition": 0, "error": None}

    def plan(*nodes: int, partition: int = 0, of: str = topic) -> tuple[str, ...]:
        """Return the arguments of the tool for moving a partition to these nodes."""
        file = tmp_path / f"{of}-{partition}-{nodes}.json"
        each = {"topic": of, "partition": partition, "replicas": nodes}
        file.write_text(json.dumps({"version": 1, "partitions": [each]}), encoding="utf-8")
        return ("kafka-reassign-partitions", "--reassignment-json-file", str(file))

    async def in_progress() -> list[tuple[str, ...]]:
        """Return the replicas, those to add and those to remove of the reassignments in this topic, as both commands list them."""
        lines = await beside_3.lines("kafka-reassign-partitions", "--list")
        pattern = r"(\S+)-(\d+): replicas: (\S*)\. adding: (\S*)\. removing: (\S*)\."
        theirs = [match.groups() for line in lines if (match := re.fullmatch(pattern, line))]
        table = await beside_3.columns("cluster", "reassignments", topic)
        ours = [
            tuple(row[name] for name in ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"))
            for row in table
        ]
        assert ours == [each for each in theirs if each[0] == topic]
        return [each[2:] for each in ours]

    async def verified(*nodes: int) -> str:
        _, line = await beside_3.lines(*plan(*nodes), "--verify", "--preserve-throttles")
        return line

    await beside_3.lines(*plan(1, 3), "--execute", "--throttle", "1")
    try:
        assert await in_progress() == [("1,3,2", "3", "2")]
        cancelled = await beside_3.ours.json("cluster", "cancel-reassignments", topic)
        assert cancelled == [{**row, "status": "cancelled"}]
        assert await in_progress() == []
        gone = (
            f"There is no active reassignment of partition {topic}-0, but replica set is 1,2 rather than 1,3."
        )
        await until_shown(lambda: verified(1, 3), gone)
        begun = await beside_3.ours.json("cluster", "reassign", f"{place}=1,3")
        assert begun == [{**row, "replicas": [1, 3], "status": "begun"}]
        assert await in_progress() == [("1,3,2", "3", "2")]
        # a replica that is added does not count
        filtered = ("--describe", "--under-replicated-partitions", "--topic", topic)
        assert await beside_3.lines("kafka-topics", *filtered) == []
        assert await beside_3.ours.json("topics", "describe", topic, "--under-replicated") == []
        assert await verified(1, 3) == f"Reassignment of partition {topic}-0 is still in progress."
        lines = await beside_3.lines(*plan(1, 3), "--cancel", "--preserve-throttles")
        assert lines[0] == f"Successfully cancelled partition reassignment for: {topic}-0"
        assert await in_progress() == []
        # an error here, a sentence there
        await beside_3.both_refuse(
            ("cluster", "cancel-reassignments", place),
            (*plan(1, 3), "--cancel"),
            error="NO_REASSIGNMENT_IN_PROGRESS",
            words=f"cancelling the reassignment of {topic}-0",
            their_words="None of the specified partition reassignments are active.",
        )
        # the second --cancel has removed the throttles
        begun = await beside_3.ours.json("cluster", "reassign", f"{place}=3,1")
        assert begun == [{**row, "replicas": [3, 1], "status": "begun"}]
        await until_shown(lambda: verified(3, 1), f"Reassignment of partition {topic}-0 is completed.")
        assert await in_progress() == []
    finally:
        await beside_3.lines(*plan(1, 3), "--cancel")
    missing = unique("missing")
    await beside_3.both_refuse(
        ("cluster", "reassign", f"{topic}:1=3,9"),
        (*plan(3, 9, partition=1), "--execute"),
        error="INVALID_REPLICA_ASSIGNMENT",
        words="includes broker 9, but no such broker is registered",
        their_words="Unknown broker id 9",
    )
    await beside_3.both_refuse(
        ("cluster", "reassign", f"{missing}:0=1"),
        (*plan(1, of=missing), "--execute"),
        error="UNKNOWN_TOPIC_OR_PARTITION",
        words=missing,
    )
    await beside_3.both_refuse(
        ("cluster", "reassign", f"{topic}:1=3,3"),
        (*plan(3, 3, partition=1), "--execute"),
        error="is not allowed",
        words="each once",
        their_words="duplicate",
    )


# --- features ---------------------------------------------------------------------------------------------------------


@NEEDS_KAFKA_4
async def test_levels_of_features(beside_breakable: Beside) -> None:
    beside, name = beside_breakable, "transaction.version"

    async def level() -> int:
        """Return the level of the feature, which both commands show."""
        lines = await beside.lines("kafka-features", "describe")
        (theirs,) = re.findall(rf"Feature: {name}\s.*FinalizedVersionLevel: (\d+)", "\n".join(lines))
        (ours,) = (
            row["level"] for row in await beside.ours.json("cluster", "features") if row["feature"] == name
        )
        return int(theirs) if ours == int(theirs) else -1

    high = await level()
    low = high - 1
    row = {"feature": name, "error": None}
    change = ("cluster", "set-features")
    down, up = ("downgrade", "--feature", f"{name}={low}"), ("upgrade", "--feature", f"{name}={high}")
    assert await beside.ours.json(*change, f"{name}={low}", "--downgrade", "--dry-run") == [
        {**row, "level": low, "status": "valid"}
    ]
    assert await beside.lines("kafka-features", *down, "--dry-run") == [f"{name} can be downgraded to {low}."]
    assert await level() == high
    assert await beside.ours.json(*change, f"{name}={low}", "--downgrade") == [
        {**row, "level": low, "status": "set"}
    ]
    await until_shown(level, low)
    assert await beside.lines("kafka-features", *up) == [f"{name} was upgraded to {high}."]
    await until_shown(level, high)
    assert await beside.lines("kafka-features", *down) == [f"{name} was downgraded to {low}."]
    await until_shown(level, low)
    assert await beside.ours.json(*change, f"{name}={high}") == [{**row, "level": high, "status": "set"}]
    await until_shown(level, high)
    for options in ((), ("--dry-run",)):
        for feature, words in (
            (f"{name}={low}", "Can't downgrade the version of this feature without setting the upgrade type"),
            (f"{name}=99", f"Invalid update version 99 for feature {name}"),
            ("nonsense.version=1", "Invalid update version 1 for feature nonsense.version"),
        ):
            await beside.both_refuse(
                (*change, feature, *options),
                ("kafka-features", "upgrade", "--feature", feature, *options),
                error="INVALID_UPDATE_VERSION",
                words=words,
            )
