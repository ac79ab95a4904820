"""`groups reset`: plan first, --execute commits it; scopes, targets, CSV there and back, refusals, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncgroup import Producer, TopicPartition
from asyncgroup.admin import Admin, GroupOffset
from tests.cli.admin_commands import Commands
from tests.cli.test_groups import member
from tests.stories.virtual import VirtualEnvironment

BORN = 1_700_000_000_000


async def fill(env: VirtualEnvironment, asyncgroup: Commands) -> None:
    """Ten records in partition 0, a second apart, of which two are deleted; offset 5 is committed, and 0 of partition 1."""
    async with Producer(env.bootstrap_servers) as producer:
        for number in range(10):
            await producer.send("orders", b"x", partition=0, timestamp=BORN + 1000 * number)
    await asyncgroup.ok("topics", "delete-records", "orders:0", "--before", "2")
    await asyncgroup.ok("offsets", "alter", "g", "orders:0=5", "orders:1=0")


async def committed(asyncgroup: Commands) -> list[int]:
    return [row["offset"] for row in await asyncgroup.json("offsets", "list", "g")]


async def test_a_plan_changes_nothing_until_it_is_executed(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    await fill(env, asyncgroup)
    reset = ("groups", "reset", "g", "--to-latest", "--all-topics")
    printed = await asyncgroup(*reset)
    assert printed.code == 0
    assert printed.table() == [
        ["GROUP", "TOPIC", "PARTITION", "OLD-OFFSET", "NEW-OFFSET", "STATUS", "ERROR"],
        ["g", "orders", "0", "5", "10", "planned", "-"],
        ["g", "orders", "1", "0", "0", "planned", "-"],
    ]
    assert (
        printed.err
        == "asyncgroup groups reset: this is only the plan, nothing is changed; --execute commits it\n"
    )
    assert await committed(asyncgroup) == [5, 0]
    assert [row["status"] for row in await asyncgroup.json(*reset, "--execute")] == ["reset", "reset"]
    assert await committed(asyncgroup) == [10, 0]


@pytest.mark.parametrize(
    ("target", "new"),
    [
        pytest.param(("--to-earliest",), 2, marks=pytest.mark.full),
        pytest.param(("--to-offset", "7"), 7, marks=pytest.mark.full),
        (("--shift-by", "-1"), 4),
        pytest.param(("--shift-by", "+2"), 7, marks=pytest.mark.full),
        pytest.param(("--to-current",), 5, marks=pytest.mark.full),
        (("--to-datetime", "2023-11-14T22:13:28Z"), 8),
        (("--by-duration", "7d"), 10),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
async def test_targets(
    asyncgroup: Commands, env: VirtualEnvironment, target: tuple[str, ...], new: int
) -> None:
    await fill(env, asyncgroup)
    printed = await asyncgroup("groups", "reset", "g", *target, "--topic", "orders:0", "--json")
    (row,) = printed.rows
    assert (printed.code, row["old_offset"], row["new_offset"]) == (0, 5, new)


async def test_adjusted_offsets_and_cleared_windows_are_named(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    await fill(env, asyncgroup)
    printed = await asyncgroup("groups", "reset", "g", "--shift-by", "-99", "--topic", "orders:0", "--json")
    (row,) = printed.rows
    assert (row["new_offset"], row["adjusted"], row["log_start"], row["log_end"]) == (2, "log_start", 2, 10)
    assert "orders-0: offset -94 is before the log's start, 2 is the new offset" in printed.err


async def test_csv_there_and_back(asyncgroup: Commands, env: VirtualEnvironment, tmp_path: Path) -> None:
    await fill(env, asyncgroup)
    exported = await asyncgroup("groups", "reset", "g", "--to-current", "--all-topics", "--export")
    assert (exported.code, exported.out) == (0, "orders,0,5\norders,1,0\n")
    file = tmp_path / "offsets.csv"
    file.write_text(exported.out, encoding="utf-8")
    await asyncgroup.ok("groups", "reset", "g", "--to-latest", "--all-topics", "--execute")
    await asyncgroup.ok("groups", "reset", "g", "--from-file", str(file), "--execute")
    assert await committed(asyncgroup) == [5, 0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "at least one row of group 'g'"),
        (b"orders,0\n", "row 1 of the CSV"),
        (b"orders,0,1\norders,0,x\n", "row 2 of the CSV"),
        (b"other,orders,0,1\n", "at least one row of group 'g'"),
        (b'"orders,0,1\n', "CSV"),
        (b"\xff\xfe", "byte 0 is not valid UTF-8"),
        (None, "No such file"),
    ],
)
async def test_broken_csv_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None, text: str
) -> None:
    asyncgroup = Commands("127.0.0.1:1", capsys)  # nothing is connected before the file is read
    file = tmp_path / "offsets.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        await asyncgroup("groups", "reset", "g", "--from-file", str(file), "--execute")
    assert caught.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"asyncgroup groups reset: error: --from-file {file}: ")
    assert text in error


async def test_what_cannot_be_planned_is_refused_as_a_whole(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    await fill(env, asyncgroup)
    scope = ("--topic", "orders:0,9", "--topic", "nope")
    printed = await asyncgroup("groups", "reset", "g", "--to-latest", *scope, "--execute")
    assert (printed.code, printed.out) == (1, "")
    assert printed.errors[-1].endswith("the offsets of group 'g' are not reset")
    assert len(printed.errors) >= 2
    assert await committed(asyncgroup) == [5, 0]


async def test_a_group_with_members_is_refused(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await fill(env, asyncgroup)
    async with member(env, "g", "classic"):
        printed = await asyncgroup("groups", "reset", "g", "--to-latest", "--all-topics", "--execute")
        assert (printed.code, printed.out) == (1, "")
        assert "Stable" in printed.err


async def test_a_group_without_commits_has_an_empty_plan(asyncgroup: Commands) -> None:
    printed = await asyncgroup("groups", "reset", "g", "--to-latest", "--all-topics")
    assert (printed.code, printed.out) == (0, "")
    assert "has no committed offsets; --topic resets" in printed.err
    (row, *_) = (await asyncgroup("groups", "reset", "g", "--to-latest", "--topic", "orders", "--json")).rows
    assert (row["old_offset"], row["new_offset"], row["status"]) == (None, 0, "planned")


async def test_metadata_is_cleared(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        place = TopicPartition("orders", 0)
        (await admin.alter_group_offsets("g", {place: GroupOffset(0, "a text")})).raise_first()
    await asyncgroup.ok("groups", "reset", "g", "--to-current", "--all-topics", "--execute")
    assert (await asyncgroup.json("offsets", "list", "g"))[0]["metadata"] == ""
