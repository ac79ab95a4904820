"""`offsets`: committed offsets listed, altered and deleted, with errors of single partitions, in virtual time."""

from __future__ import annotations

from asyncgroup import Producer, ProducerConfig
from asyncgroup.admin import Admin, GroupOffset
from asyncgroup.model import TopicPartition
from tests.cli.admin_commands import Commands
from tests.cli.test_groups import member
from tests.stories.virtual import VirtualEnvironment


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


async def test_offsets_of_partitions(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    async with Producer(env.bootstrap_servers) as producer:
        for number in range(5):
            await producer.send("orders", b"x", partition=1, timestamp=1_700_000_000_000 + 1000 * number)
    await asyncgroup.ok("topics", "delete-records", "orders:1", "--before", "2")

    async def offsets(*arguments: str) -> list[int | None]:
        return [row["offset"] for row in await asyncgroup.json("offsets", *arguments)]

    assert await offsets("earliest") == [0, 2, 0, 0]
    assert await offsets("latest", "orders:1,3") == [5, 0]
    assert await offsets("at", "2023-11-14T22:13:22.5Z", "orders:1") == [3]
    assert await offsets("at", "2023-11-14T23:13:23+01:00", "orders:1") == [3]
    assert await offsets("at", "1700000003", "orders:0,1") == [None, 3]
    assert await offsets("at", "7d", "orders:1") == [None]
    headings, row = (await asyncgroup.ok("offsets", "at", "max-timestamp", "orders:1")).table()
    assert headings == ["TOPIC", "PARTITION", "OFFSET", "TIMESTAMP", "LEADER-EPOCH"]
    assert row[:4] == ["orders", "1", "4", "2023-11-14T22:13:24.000Z"]
    printed = await asyncgroup("offsets", "latest", "orders:0,9", "nope", "-q")
    assert (printed.code, printed.lines) == (1, ["orders\t0"])
    assert len(printed.errors) == 2


async def test_the_last_stable_offset(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    config = ProducerConfig(transactional_id="tx")
    async with Producer(env.bootstrap_servers, config) as producer, producer.transaction():
        await producer.send("orders", b"x", partition=0)
        for level, offset in (("read_uncommitted", 1), ("read_committed", 0)):
            (row,) = await asyncgroup.json("offsets", "latest", "orders:0", "--isolation-level", level)
            assert row["offset"] == offset
