"""`groups`: lists, states, members of both protocols, deletion, and errors of single groups and nodes, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncgroup import ConsumerConfig, ConsumerGroup
from tests.cli.admin_commands import Commands
from tests.stories.holding import holding
from tests.stories.virtual import VirtualEnvironment


@asynccontextmanager
async def member(env: VirtualEnvironment, group: str, protocol: str) -> AsyncIterator[None]:
    """A member that has all partitions of `orders`."""
    config = ConsumerConfig(client_id=f"client-{group}", group_protocol=protocol)  # type: ignore[arg-type]
    async with ConsumerGroup(env.bootstrap_servers, group, config) as running, holding(running, "orders", 4):
        yield


async def test_groups_are_listed_and_described(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    assert (await asyncgroup.ok("groups", "list")).out == ""
    await asyncgroup.ok("offsets", "alter", "idle", "orders:0=0")
    async with member(env, "old", "classic"), member(env, "new", "consumer"):
        assert (await asyncgroup.ok("groups", "list")).table() == [
            ["GROUP", "TYPE", "PROTOCOL", "STATE"],
            ["idle", "classic", "-", "Empty"],
            ["new", "consumer", "consumer", "Stable"],
            ["old", "classic", "consumer", "Stable"],
        ]
        assert (await asyncgroup.ok("groups", "list", "-q", "--state", "Empty,Dead")).lines == ["idle"]
        assert (await asyncgroup.ok("groups", "list", "-q", "--type", "consumer")).lines == ["new"]
        rows = {row["group"]: row for row in await asyncgroup.json("groups", "describe")}
        assert {name: (row["state"], row["members"]) for name, row in rows.items()} == {
            "idle": ("Empty", 0),
            "new": ("Stable", 1),
            "old": ("Stable", 1),
        }
        assert {name: row["coordinator"] for name, row in rows.items()} == {
            name: env.cluster.coordinator(name) for name in rows
        }
        assert rows["old"]["group_epoch"] is None
        assert rows["new"]["group_epoch"] == rows["new"]["assignment_epoch"] > 0

        headings, old, new = (
            await asyncgroup.ok("groups", "describe", "old", "new", "--members", "--wide")
        ).table()
        assert headings[1:6] == ["CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
        assert old[4:] == ["client-old", "4", "-", "orders:0,1,2,3", "-", "-"]
        assert new[4:6] + new[7:] == ["client-new", "4", "orders:0,1,2,3", "orders:0,1,2,3", "yes"]


async def test_a_group_with_members_is_not_deleted(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await asyncgroup.ok("offsets", "alter", "idle", "orders:0=0")
    async with member(env, "g", "classic"):
        printed = await asyncgroup("groups", "delete", "g", "idle", "nope")
    assert printed.code == 1
    assert printed.table()[1:] == [
        ["g", "failed", "NON_EMPTY_GROUP"],
        ["idle", "deleted", "-"],
        ["nope", "failed", "GROUP_ID_NOT_FOUND"],
    ]
    assert any("stop its members first" in line for line in printed.errors)
    assert any("`asyncgroup groups list` shows the groups" in line for line in printed.errors)


async def test_members_are_removed(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    async with member(env, "g", "classic"):
        (row,) = await asyncgroup.json("groups", "describe", "g", "--members")
        printed = await asyncgroup("groups", "remove-members", "g", "--instance", "nope", "--json")
        assert (printed.code, printed.rows) == (
            1,
            [
                {
                    "group": "g",
                    "member_id": None,
                    "group_instance_id": "nope",
                    "status": "failed",
                    "error": "UNKNOWN_MEMBER_ID",
                }
            ],
        )
        arguments = ("groups", "remove-members", "g", "--member", row["member_id"], "--reason", "test")
        (removed,) = await asyncgroup.json(*arguments)
        assert (removed["member_id"], removed["status"]) == (row["member_id"], "removed")
    (leave, *_) = (each.request for each in env.cluster.history.of("LeaveGroup")[1:])
    assert leave.members[0].reason == "test"
    assert await asyncgroup.json("groups", "remove-members", "g", "--all") == []


async def test_an_unknown_group_costs_the_others_nothing(asyncgroup: Commands) -> None:
    await asyncgroup.ok("offsets", "alter", "idle", "orders:0=0")
    printed = await asyncgroup("groups", "describe", "nope", "idle", "-q")
    assert (printed.code, printed.lines) == (1, ["idle"])
    assert "GROUP_ID_NOT_FOUND" in printed.err


async def test_a_node_whose_rows_are_missing_is_named(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await asyncgroup.ok("offsets", "alter", "idle", "orders:0=0")
    other = env.cluster.coordinator("idle") % 3 + 1
    env.cluster.faults.on("ListGroups", node=other, times=None).error("GROUP_AUTHORIZATION_FAILED")
    printed = await asyncgroup("groups", "list", "-q", "--timeout", "3")
    assert (printed.code, printed.lines) == (1, ["idle"])
    assert printed.err.startswith(f"asyncgroup groups list: the rows of node {other} are missing: ")
