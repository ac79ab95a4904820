"""The administrative commands beside Kafka's own tools on the same Apache Kafka: the same rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asyncgroup import Producer, ProducerConfig
from tests.real.beside_kafka import BORN, Beside, beside, beside_39, filled, member, unique
from tests.real.support import NEEDS_KAFKA_4, until_shown

__all__ = ["beside", "beside_39"]

# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_topics(beside: Beside) -> None:
    await topics_beside(beside)


@pytest.mark.full
async def test_topics_on_an_old_kafka(beside_39: Beside) -> None:
    await topics_beside(beside_39)


async def topics_beside(beside: Beside) -> None:
    """Compare lists and descriptions of topics."""
    topic, plain = await filled(beside), unique("plain")
    await beside.ours.ok("topics", "create", plain, "-p", "1", "-r", "1")
    assert (await beside.ours.ok("topics", "list", "-q")).lines == await beside.lines(
        "kafka-topics", "--list"
    )
    ours = (await beside.ours.ok("topics", "list", "-q", "--exclude-internal")).lines
    assert ours == await beside.lines("kafka-topics", "--list", "--exclude-internal")

    head, theirs = await beside.described(topic)
    rows = await beside.columns("topics", "describe", topic, "--wide")
    assert [{name: row[name] for name in theirs[0]} for row in rows] == theirs
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

    async def both(*options: str) -> dict[str, str | None] | None:
        """Return the values, None if the commands differ, one of which may have been earlier than a change."""
        theirs = await beside.configs("topics", topic, *options)
        rows = await beside.ours.json("configs", "describe", "topic", topic, *options)
        if {row["config"]: (row["value"], row["sensitive"]) for row in rows} != theirs:
            return None
        return {config: value for config, (value, _) in theirs.items()}

    expected = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    await until_shown(both, expected)
    every = await both("--all")
    assert every is not None
    assert every.items() > expected.items()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    await beside.lines(
        "kafka-configs", "--alter", *entity, "--add-config", "retention.bytes=[77],segment.ms=88"
    )
    await until_shown(both, {**expected, "retention.bytes": "77", "segment.ms": "88"})
    rows = await beside.ours.json(
        "configs", "describe", "topic", topic, "--keys", "retention.bytes,segment.ms"
    )
    assert {row["config"]: row["value"] for row in rows} == {"retention.bytes": "77", "segment.ms": "88"}


@pytest.mark.full
async def test_configurations_of_a_broker(beside: Beside) -> None:
    node = str((await beside.ours.json("cluster", "describe"))[0]["node"])
    theirs = await beside.configs("brokers", node, "--all")
    rows = await beside.ours.json("configs", "describe", "broker", node, "--all")
    assert {row["config"]: (row["value"], row["sensitive"]) for row in rows} == theirs
    assert len(rows) == len(theirs)
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
async def test_groups_on_an_old_kafka(beside_39: Beside) -> None:
    await groups_beside(beside_39, "classic")


async def groups_beside(beside: Beside, protocol: str) -> None:
    """Compare the lag, members and state of a group, and the list of groups."""
    topic, group = await filled(beside), unique(protocol)
    await beside.ours.ok("offsets", "alter", group, f"{topic}:0=4", f"{topic}:1=0")
    async with member(beside, group, topic, protocol):
        description = ("--describe", "--group", group, "--verbose")
        theirs = await beside.table(*description, "--offsets")
        names = (
            *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
            *("CONSUMER-ID", "HOST", "CLIENT-ID"),
        )
        by_partition = sorted(theirs, key=lambda row: int(row["PARTITION"]))
        ours = await beside.columns("groups", "lag", group)
        assert ours == [{name: row[name] for name in names} for row in by_partition]
        assert len(ours) == 3
        wide = await beside.columns("groups", "lag", group, "--wide")
        assert [{name: row[name] for name in by_partition[0]} for row in wide] == by_partition

        (theirs_member,) = await beside.table(*description, "--members")
        (row,) = await beside.columns("groups", "describe", group, "--members", "--wide")
        del theirs_member["TARGET-EPOCH"]  # that of the group, which ours has in its description
        assert {name: row[name] for name in theirs_member} == theirs_member

        (state,) = await beside.table(*description, "--state")
        (row,) = await beside.columns("groups", "describe", group)
        pairs = {"COORDINATOR": "(ID)", "ASSIGNOR": "ASSIGNMENT-STRATEGY"}
        pairs |= {"ASSIGNMENT-EPOCH": "TARGET-ASSIGNMENT-EPOCH"}
        pairs |= {name: name for name in ("GROUP", "STATE", "GROUP-EPOCH", "#MEMBERS")}
        assert {name: row[name] for name in pairs} == {
            name: state[title].strip("()") for name, title in pairs.items()
        }
        (row,) = await beside.columns("groups", "lag", group, "--summary")
        lags = [int(each["LAG"]) for each in theirs if each["LAG"] != "-"]
        assert (row["STATE"], row["#MEMBERS"], row["#PARTITIONS"]) == (state["STATE"], state["#MEMBERS"], "3")
        assert (row["LAG"], row["LAG-MAX"]) == (str(sum(lags)), str(max(lags)))
        total, *watched = await beside.columns("groups", "lag", group, "--watch", "--count", "1")
        assert (total["GROUP"], total["LAG"]) == (group, str(sum(lags)))
        assert watched == [
            {**each, **{name: row[name] for name in names if name in each}}
            for each, row in zip(watched, by_partition, strict=True)
        ]
        healthy = {
            "group": group,
            "healthy": True,
            "state": "Stable",
            "members": 1,
            "partitions": 3,
            "lag": sum(lags),
            "lag_max": max(lags),
            "lost": 0,
            "reasons": [],
        }
        assert await beside.ours.json("health", group) == [healthy]

        listed = await beside.table("--list", "--state")
        rows = await beside.columns("groups", "list")
        assert {(row["GROUP"], row["STATE"]) for row in listed} == {
            (row["GROUP"], row["STATE"])
            for row in rows
            if row["TYPE"] != "share"  # other tests have left some
        }
        _, *lines = await beside.lines("kafka-groups", "--list")
        # the tool has blanks for no protocol
        assert [group, protocol.title(), "consumer"] in [line.split() for line in lines]
        assert {"GROUP": group, "TYPE": protocol, "PROTOCOL": "consumer", "STATE": "Stable"} in rows


@pytest.mark.full
async def test_a_plan_and_its_csv(beside: Beside, tmp_path: Path) -> None:
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

    done = await beside.ours.json("groups", "reset", group, "--to-latest", "--all-topics", "--execute")
    assert [(row["partition"], row["new_offset"], row["status"]) for row in done] == [
        (0, 10, "reset"),
        (1, 4, "reset"),
    ]
    after = await beside.table("--describe", "--group", group, "--offsets")
    assert sorted((row["PARTITION"], row["CURRENT-OFFSET"]) for row in after) == [("0", "10"), ("1", "4")]
    backup = tmp_path / "offsets.csv"  # ours of before, which the tool reads
    backup.write_text(ours.out, encoding="utf-8")
    await beside.lines("kafka-consumer-groups", *arguments[:3], "--from-file", str(backup), "--execute")
    before = await beside.ours.json("offsets", "list", group)
    assert [(row["partition"], row["offset"]) for row in before] == [(0, 4), (1, 0)]


# --- transactions and the cluster -------------------------------------------------------------------------------------


@pytest.mark.full
async def test_transactions(beside: Beside) -> None:
    await transactions_beside(beside)


@pytest.mark.full
async def test_transactions_on_an_old_kafka(beside_39: Beside) -> None:
    await transactions_beside(beside_39)


async def transactions_beside(beside: Beside) -> None:
    """Compare an open transaction in a list, its description, and its producer."""
    topic, name = await filled(beside), unique("tx")
    async with (
        Producer(beside.servers, ProducerConfig(transactional_id=name)) as producer,
        producer.transaction(),
    ):
        await producer.send(topic, b"x", partition=2)
        for options, ours_options in (((), ()), (("--duration-filter", "0"), ("--longer-than", "0"))):
            (theirs,) = (
                row for row in await beside.transactions("list", *options) if row["TransactionalId"] == name
            )
            listed = await beside.ours.json("transactions", "list", *ours_options)
            (ours,) = (row for row in listed if row["transactional_id"] == name)
            assert {key: str(value) for key, value in ours.items()} == {
                "transactional_id": name,
                "coordinator": theirs["Coordinator"],
                "producer_id": theirs["ProducerId"],
                "state": theirs["TransactionState"],
            }
        (theirs,) = await beside.transactions("describe", "--transactional-id", name)
        (ours,) = await beside.ours.json("transactions", "describe", name)
        assert [
            str(ours[key]) for key in ("coordinator", "transactional_id", "producer_id", "producer_epoch")
        ] == [theirs[key] for key in ("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch")]
        assert (ours["state"], ours["timeout"] * 1000, str(ours["start_timestamp"])) == (
            theirs["TransactionState"],
            int(theirs["TransactionTimeoutMs"]),
            theirs["CurrentTransactionStartTimeMs"],
        )
        assert (ours["partitions"], theirs["TopicPartitions"]) == ([f"{topic}:2"], f"{topic}-2")
        (theirs,) = await beside.transactions("describe-producers", "--topic", topic, "--partition", "2")
        (ours,) = await beside.ours.json("transactions", "producers", f"{topic}:2")
        assert [
            str(ours[key])
            for key in ("producer_id", "producer_epoch", "last_sequence", "last_timestamp", "start_offset")
        ] == [
            theirs[name]
            for name in (
                "ProducerId",
                "ProducerEpoch",
                "LastSequence",
                "LastTimestamp",
                "CurrentTransactionStartOffset",
            )
        ]
        assert (
            str(-1 if ours["coordinator_epoch"] is None else ours["coordinator_epoch"])
            == theirs["LatestCoordinatorEpoch"]
        )
    await beside.both_refuse(
        ("transactions", "describe", f"{name}-none"),
        ("kafka-transactions", "describe", "--transactional-id", f"{name}-none"),
        error="TRANSACTIONAL_ID_NOT_FOUND",
        words=f"{name}-none",
        their_words="failed because the ID could not be found",
    )


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
    await features_and_quorum_beside(beside)


@pytest.mark.full
async def test_features_and_quorum_of_an_old_kafka(beside_39: Beside) -> None:
    await features_and_quorum_beside(beside_39)


async def features_and_quorum_beside(beside: Beside) -> None:
    """Compare the levels of features, and the nodes of the quorum."""
    lines = await beside.lines("kafka-features", "describe")
    pattern = r"Feature: (\S+)\s+SupportedMinVersion: (.+?)\s+SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)"
    theirs = {name: rest for name, *rest in re.findall(pattern, "\n".join(lines))}
    rows = await beside.ours.json("cluster", "features")
    names = ("feature", "min_supported", "max_supported", "level")
    # the tool writes a level of metadata.version as a release (UNKNOWN if it is too old), and 0 for a feature that is not in use
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
