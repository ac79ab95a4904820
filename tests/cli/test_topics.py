"""`topics`: tables, filters, changes with their statuses, and errors of single topics, on the embedded broker in virtual time."""

from __future__ import annotations

import argparse

import pytest

from asyncgroup import Producer
from asyncgroup.cli import topics
from tests.cli.admin_commands import Commands
from tests.stories.virtual import VirtualEnvironment

# --- list and describe ------------------------------------------------------------------------------------------------


async def test_topics_are_listed(asyncgroup: Commands) -> None:
    (row,) = await asyncgroup.json("topics", "list")
    assert list(row) == ["topic", "partitions", "internal", "topic_id"]
    assert (row["topic"], row["partitions"], row["internal"]) == ("orders", 4, False)
    await asyncgroup.ok("offsets", "alter", "g", "orders:0=0")  # creates Kafka's own topic
    assert (await asyncgroup.ok("topics", "list", "-q")).lines == ["__consumer_offsets", "orders"]
    assert (await asyncgroup.ok("topics", "list", "-q", "--exclude-internal")).lines == ["orders"]


async def test_partitions_are_described_and_filtered(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    headings, *rows = (await asyncgroup.ok("topics", "describe", "orders")).table()
    assert headings[:4] == ["TOPIC", "PARTITION", "LEADER", "LEADER-EPOCH"]
    assert headings[4:] == ["REPLICAS", "ISR", "OFFLINE"]
    wide = (await asyncgroup.ok("topics", "describe", "orders", "--wide")).table()[0]
    assert wide == [*headings, "ELR", "LAST-KNOWN-ELR"]
    assert {
        (row["elr"] is None, row["last_known_elr"] is None)
        for row in await asyncgroup.json("topics", "describe", "orders")
    } == {(False, False)}
    leaders = [env.cluster.leader("orders", number) for number in range(4)]
    assert [row[:3] for row in rows] == [["orders", str(n), str(leader)] for n, leader in enumerate(leaders)]

    filters = ("--under-replicated", "--unavailable", "--under-min-isr", "--at-min-isr")
    assert [(await asyncgroup.ok("topics", "describe", each)).lines for each in filters] == [[], [], [], []]
    env.cluster.create_topic("alone", 1, 1)
    await env.kill_node(env.cluster.leader("alone", 0) or 0)
    described = {
        each: await asyncgroup.json("topics", "describe", "alone", "orders", each) for each in filters
    }
    found = {each: {row["topic"] for row in rows} for each, rows in described.items()}
    assert found["--under-replicated"] >= {"orders"}
    assert found["--unavailable"] == {"alone"}
    assert "alone" in found["--under-min-isr"]
    (gone,) = described["--unavailable"]
    assert gone["leader"] is None


async def test_min_isr_is_compared_as_by_kafka(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await asyncgroup.ok("topics", "create", "two", "-p", "1", "-r", "3", "--set", "min.insync.replicas=2")
    await env.kill_node(env.cluster.leader("two", 0) or 0)
    (row,) = await asyncgroup.json("topics", "describe", "two", "--at-min-isr")
    assert len(row["isr"]) == 2
    assert await asyncgroup.json("topics", "describe", "two", "--under-min-isr") == []
    await env.kill_node(env.cluster.leader("two", 0) or 0)
    assert await asyncgroup.json("topics", "describe", "two", "--at-min-isr") == []
    assert len(await asyncgroup.json("topics", "describe", "two", "--under-min-isr")) == 1


@pytest.mark.parametrize(("leader", "is_under"), [(1, False), (None, True)])
async def test_a_partition_without_a_leader_is_below_any_minimum(leader: int | None, is_under: bool) -> None:
    names = ("under_replicated", "unavailable", "under_min_isr", "at_min_isr")
    options = argparse.Namespace(**dict.fromkeys(names, False))
    options.under_min_isr = True
    # before Kafka 4.1 the last replica in sync stays in the ISR
    row = {"isr": [1], "replicas": [1], "leader": leader, "min_isr": 1, "adding": 0}
    assert topics._is_wanted(row, options) == is_under


async def test_topics_with_overrides(asyncgroup: Commands) -> None:
    assert await asyncgroup.json("topics", "describe", "--with-overrides") == []
    await asyncgroup.ok(
        "topics",
        "create",
        "t",
        "-p",
        "2",
        "-r",
        "1",
        "--set",
        "retention.ms=1,cleanup.policy=[compact,delete]",
    )
    assert await asyncgroup.json("topics", "describe", "--with-overrides") == [
        {
            "topic": "t",
            "partitions": 2,
            "replication_factor": 1,
            "configs": {"cleanup.policy": "compact,delete", "retention.ms": "1"},
        }
    ]


# --- changes ----------------------------------------------------------------------------------------------------------


async def test_a_topic_that_exists_costs_the_others_nothing(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    create = ("topics", "create", "new", "orders", "-p", "2", "-r", "1")
    assert (await asyncgroup(*create, "--dry-run")).code == 1
    assert (await asyncgroup.ok("topics", "list", "-q")).lines == ["orders"]
    printed = await asyncgroup(*create)
    assert printed.code == 1
    assert printed.table() == [
        ["TOPIC", "STATUS", "ERROR"],
        ["new", "created", "-"],
        ["orders", "failed", "TOPIC_ALREADY_EXISTS"],
    ]
    assert len(printed.errors) == 1
    assert "TOPIC_ALREADY_EXISTS" in printed.err
    assert printed.err.endswith("; --if-not-exists accepts a topic that exists\n")
    assert len(env.cluster.topic("new").partitions) == 2
    accepted = await asyncgroup.json("topics", "create", "third", "orders", "--if-not-exists")
    assert [(row["topic"], row["status"]) for row in accepted] == [("third", "created"), ("orders", "exists")]


async def test_replicas_where_they_are_wanted(asyncgroup: Commands) -> None:
    await asyncgroup.ok("topics", "create", "t", "--replica-assignment", "3:1,1:2")
    rows = await asyncgroup.json("topics", "describe", "t")
    assert [row["replicas"] for row in rows] == [[3, 1], [1, 2]]
    added = ("topics", "add-partitions", "t", "--total", "3", "--replica-assignment", "2:3")
    assert (await asyncgroup.json(*added, "--dry-run"))[0]["status"] == "valid"
    assert await asyncgroup.json(*added) == [
        {"topic": "t", "partitions": 3, "status": "added", "error": None}
    ]
    assert (await asyncgroup.json("topics", "describe", "t"))[2]["replicas"] == [2, 3]
    printed = await asyncgroup("topics", "add-partitions", "t", "nope", "--total", "3", "-q")
    assert (printed.code, printed.out) == (1, "")
    grown, missing = printed.errors
    assert grown.endswith("the number of partitions can only grow; `asyncgroup topics list` shows it")
    assert missing.endswith("; `asyncgroup topics list` shows the topics and their numbers of partitions")


async def test_topics_are_deleted(asyncgroup: Commands) -> None:
    printed = await asyncgroup("topics", "delete", "orders", "nope")
    assert printed.code == 1
    assert printed.table()[1:] == [
        ["orders", "deleted", "-"],
        ["nope", "failed", "UNKNOWN_TOPIC_OR_PARTITION"],
    ]
    rows = await asyncgroup.json("topics", "delete", "orders", "--if-exists")
    assert rows == [{"topic": "orders", "status": "missing", "error": None}]
    assert (await asyncgroup("topics", "describe", "orders")).code == 1


async def test_records_are_deleted(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    async with Producer(env.bootstrap_servers) as producer:
        for _ in range(5):
            await producer.send("orders", b"x", partition=1)
    rows = await asyncgroup.json("topics", "delete-records", "orders:1", "--before", "2")
    assert rows == [
        {"topic": "orders", "partition": 1, "log_start_offset": 2, "status": "deleted", "error": None}
    ]
    printed = await asyncgroup("topics", "delete-records", "orders:1", "--before", "9")
    assert (printed.code, printed.table()[1]) == (1, ["orders", "1", "-", "failed", "OFFSET_OUT_OF_RANGE"])
    rows = await asyncgroup.json("topics", "delete-records", "orders", "--before", "latest")
    assert [row["log_start_offset"] for row in rows] == [0, 5, 0, 0]
    assert (await asyncgroup("topics", "delete-records", "nope", "--before", "1")).code == 1
