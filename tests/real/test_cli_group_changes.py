"""Commands that change committed offsets and groups, beside `kafka-consumer-groups` on the same Apache Kafka; a group's health.

What one of the two has changed, the other one shows; and both refuse the same bad input.
"""

from __future__ import annotations

import pytest

from tests.real.beside_kafka import Beside, beside, beside_39, filled, member, unique
from tests.real.support import NEEDS_KAFKA_4

__all__ = ["beside", "beside_39"]

pytestmark = pytest.mark.full


async def committed(beside: Beside, group: str) -> dict[str, str]:
    """Return the committed offset of each partition, which both commands show."""
    theirs = await beside.table("--describe", "--group", group, "--offsets")
    rows = await beside.ours.json("offsets", "list", group)
    found = {row["PARTITION"]: row["CURRENT-OFFSET"] for row in theirs}
    assert {str(row["partition"]): str(row["offset"]) for row in rows} == found
    return found


async def test_altered_and_deleted_offsets(beside: Beside) -> None:
    topic, group = await filled(beside), unique("g")
    row = {"group": group, "topic": topic, "error": None}
    altered = await beside.ours.json(
        "offsets", "alter", group, f"{topic}:0=4", f"{topic}:1=0", f"{topic}:2=0"
    )
    assert altered == [
        {**row, "partition": partition, "offset": offset, "status": "altered"}
        for partition, offset in ((0, 4), (1, 0), (2, 0))
    ]
    assert await committed(beside, group) == {"0": "4", "1": "0", "2": "0"}
    tool = ("kafka-consumer-groups", "--group", group)
    await beside.lines(*tool, "--reset-offsets", "--topic", f"{topic}:0", "--to-offset", "6", "--execute")
    assert await committed(beside, group) == {"0": "6", "1": "0", "2": "0"}
    # the tool speaks of one partition that does not exist, ours has a row for each
    await beside.both_refuse(
        ("offsets", "alter", group, f"{topic}:9=4"),
        (*tool, "--reset-offsets", "--topic", f"{topic}:9", "--to-offset", "4", "--execute"),
        error="UNKNOWN_TOPIC_OR_PARTITION",
        words=f"{topic}-9",
    )

    deleted = await beside.ours.json("offsets", "delete", group, f"{topic}:1")
    assert deleted == [{**row, "partition": 1, "status": "deleted"}]
    assert await committed(beside, group) == {"0": "6", "2": "0"}
    *_, line = await beside.lines(*tool, "--delete-offsets", "--topic", f"{topic}:2")
    assert line.split() == [topic, "2", "Successful"]
    assert await committed(beside, group) == {"0": "6"}
    # no error for both: a partition without a commit
    deleted = await beside.ours.json("offsets", "delete", group, f"{topic}:1")
    assert deleted == [{**row, "partition": 1, "status": "deleted"}]
    *_, line = await beside.lines(*tool, "--delete-offsets", "--topic", f"{topic}:1")
    assert line.split() == [topic, "1", "Successful"]
    await beside.both_refuse(
        ("offsets", "delete", group, f"{topic}:9"),
        (*tool, "--delete-offsets", "--topic", f"{topic}:9"),
        error="UNKNOWN_TOPIC_OR_PARTITION",
        words=f"{topic}-9",
        their_words="Error: org.apache.kafka.common.errors.UnknownTopicOrPartitionException",
    )
    missing = unique("missing")
    await beside.both_refuse(
        ("offsets", "delete", missing, f"{topic}:0"),
        ("kafka-consumer-groups", "--group", missing, "--delete-offsets", "--topic", f"{topic}:0"),
        error="GROUP_ID_NOT_FOUND",
        words=missing,
        their_words="Error: The group id does not exist.",
    )


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_what_members_keep_from_changes(beside: Beside, protocol: str) -> None:
    topic, group = await filled(beside), unique(protocol)
    await beside.ours.ok("offsets", "alter", group, f"{topic}:0=4")
    tool = ("kafka-consumer-groups", "--group", group)
    async with member(beside, group, topic, protocol):
        await beside.both_refuse(
            ("offsets", "delete", group, f"{topic}:0"),
            (*tool, "--delete-offsets", "--topic", f"{topic}:0"),
            error="GROUP_SUBSCRIBED_TO_TOPIC",
            words=f"{topic}-0",
            their_words="GroupSubscribedToTopicException",
        )
        await beside.both_refuse(
            ("groups", "delete", group),
            (*tool, "--delete"),
            error="NON_EMPTY_GROUP",
            words=group,
            their_words="GroupNotEmptyException",
        )
        await beside.both_refuse(
            ("groups", "reset", group, "--to-latest", "--all-topics", "--execute"),
            (*tool, "--reset-offsets", "--all-topics", "--to-latest", "--execute"),
            error="state Stable",
            words="Stable",
            their_words="is inactive, but the current state is Stable",
        )
        assert (await beside.columns("offsets", "list", group))[0]["CURRENT-OFFSET"] == "4"


async def test_deleted_groups(beside: Beside) -> None:
    await deleted_groups(beside)


async def test_deleted_groups_of_an_old_kafka(beside_39: Beside) -> None:
    await deleted_groups(beside_39)


async def deleted_groups(beside: Beside) -> None:
    """Delete a group with each command."""
    topic, ours, theirs = await filled(beside), unique("ours"), unique("theirs")

    async def existing() -> dict[str, tuple[str, str]]:
        """Return the type and state of those that exist, for both commands."""
        rows = await beside.columns("groups", "list")
        found = {row["GROUP"]: (row["TYPE"], row["STATE"]) for row in rows if row["GROUP"] in (ours, theirs)}
        listed = await beside.table("--list", "--type", "--state")
        assert {
            row["GROUP"]: (row["TYPE"].lower(), row["STATE"])
            for row in listed
            if row["GROUP"] in (ours, theirs)
        } == found
        return found

    for group in (ours, theirs):
        await beside.ours.ok("offsets", "alter", group, f"{topic}:0=4")
    assert await existing() == dict.fromkeys((ours, theirs), ("classic", "Empty"))
    deleted = await beside.ours.json("groups", "delete", theirs)
    assert deleted == [{"group": theirs, "status": "deleted", "error": None}]
    assert await existing() == {ours: ("classic", "Empty")}
    (line,) = await beside.lines("kafka-consumer-groups", "--delete", "--group", ours)
    assert line == f"Deletion of requested consumer groups ('{ours}') was successful."
    assert await existing() == {}
    await beside.both_refuse(
        ("groups", "delete", ours),
        ("kafka-consumer-groups", "--delete", "--group", ours),
        error="GROUP_ID_NOT_FOUND",
        words=ours,
        their_words=f"* Group '{ours}' could not be deleted due to: org.apache.kafka.common.errors.GroupIdNotFound",
    )


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_removed_members(beside: Beside, protocol: str) -> None:
    """None of Kafka's tools can remove a member: they show that it has gone."""
    topic, group = await filled(beside), unique(protocol)
    async with member(beside, group, topic, protocol, group_instance_id="one"):
        (theirs,) = await beside.table("--describe", "--group", group, "--members")
        (ours,) = await beside.columns("groups", "describe", group, "--members")
        assert ours == {name: theirs[name] for name in ours}
    # a static member that has left stays in the group
    (theirs,) = await beside.table("--describe", "--group", group, "--members")
    assert theirs["GROUP-INSTANCE-ID"] == "one"
    (unhealthy,) = await beside.ours.json("health", group)
    assert (unhealthy["healthy"], unhealthy["members"]) == (True, 1)
    removed = await beside.ours.json("groups", "remove-members", group, "--instance", "one")
    row = {"group": group, "member_id": None, "group_instance_id": "one"}
    assert removed == [{**row, "status": "removed", "error": None}]
    assert await beside.table("--describe", "--group", group, "--members") == []
    (state,) = await beside.table("--describe", "--group", group, "--state")
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")
    printed = await beside.ours("health", group, "--json")
    assert printed.code == 1
    assert (printed.rows[0]["state"], printed.rows[0]["members"]) == ("Empty", 0)
    again = await beside.ours("groups", "remove-members", group, "--instance", "one", "--json")
    assert again.code == 1
    assert again.rows == [{**row, "status": "failed", "error": "UNKNOWN_MEMBER_ID"}]
