"""`offsets`: committed offsets listed, altered and deleted, with errors of single partitions, in virtual time."""

from __future__ import annotations

import pytest

from asyncgroup.admin import Admin, GroupOffset
from asyncgroup.model import TopicPartition
from tests.cli.admin_commands import Commands
from tests.cli.test_groups import member
from tests.stories.virtual import VirtualEnvironment

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


async def test_committed_offsets(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        place = TopicPartition("orders", 3)
        (await admin.alter_group_offsets("g", {place: GroupOffset(7, "text\n", 2)})).raise_first()
    altered = await asyncgroup.json("offsets", "alter", "g", "orders:0=5", "orders:1=0")
    assert [(row["partition"], row["offset"], row["status"]) for row in altered] == [
        (0, 5, "altered"),
        (1, 0, "altered"),
    ]
    assert (await asyncgroup.ok("offsets", "list", "g", "--wide")).table() == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LEADER-EPOCH", "METADATA"],
        ["g", "orders", "0", "5", "-", '""'],
        ["g", "orders", "1", "0", "-", '""'],
        ["g", "orders", "3", "7", "2", "text\\n"],
    ]
    (row,) = await asyncgroup.json("offsets", "list", "g", "orders:3,9", "other")
    assert (row["offset"], row["leader_epoch"], row["metadata"]) == (7, 2, "text\n")
    printed = await asyncgroup("offsets", "delete", "g", "orders:3", "other")
    assert (printed.code, printed.table()[1]) == (1, ["g", "orders", "3", "deleted", "-"])
    assert printed.err == "asyncgroup offsets delete: group 'g' has no committed offsets of topic 'other'\n"
    assert len(await asyncgroup.json("offsets", "delete", "g", "orders")) == 2
    printed = await asyncgroup("offsets", "list", "g")
    assert (printed.code, printed.out) == (0, "")
    assert "no committed offsets" in printed.err


async def test_errors_of_single_partitions(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    printed = await asyncgroup("offsets", "alter", "g", "orders:0=5", "nope:0=1", "orders:9=1")
    assert printed.code == 1
    assert [row[4:] for row in printed.table()[1:]] == [
        ["altered", "-"],
        ["failed", "UNKNOWN_TOPIC_OR_PARTITION"],
        ["failed", "UNKNOWN_TOPIC_OR_PARTITION"],
    ]
    async with member(env, "g", "classic"):
        printed = await asyncgroup("offsets", "alter", "g", "orders:0=5")
        assert (printed.code, printed.table()[1][5]) == (1, "UNKNOWN_MEMBER_ID")
        assert "offsets are altered without members only" in printed.err
        printed = await asyncgroup("offsets", "delete", "g", "orders:0", "-q")
        assert (printed.code, printed.out) == (1, "")
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in printed.err
