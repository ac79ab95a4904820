"""`consume` and `produce` in this process: partitions, start positions, keys, headers, and what excludes what."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli import main
from asyncgroup.cli.app import _parser
from asyncgroup.cli.printing import record_format
from asyncgroup.cli.work import _queue
from asyncgroup.errors import AsyncGroupError, BrokerError, UsageError
from asyncgroup.model import Record
from tests.broker.internals import log_of

virtual = pytest.mark.virtual

HOUR = 3_600_000
BORN = 1_700_000_000_000
"""Timestamp of the first record of each partition, in ms: 2023-11-14T22:13:20Z."""


@asynccontextmanager
async def cluster_with(count: int = 5, partitions: int = 2) -> AsyncIterator[EmbeddedCluster]:
    """A cluster with `count` records in each partition of the topic `t`, an hour apart; `1@0` is the first of partition 1."""
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("t", partitions)
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(count):
                for partition in range(partitions):
                    await producer.send(
                        "t",
                        b"%d@%d" % (partition, number),
                        key=b"k%d" % number if number else None,
                        partition=partition,
                        timestamp=BORN + HOUR * number,
                    )
        yield cluster


async def run(cluster: EmbeddedCluster, command: str, *arguments: str) -> int:
    """Run a command on the topic `t` in this event loop; return its exit code."""
    options = _parser().parse_args([command, "-t", "t", "-b", cluster.bootstrap_servers, *arguments])
    return int(await options.run(options))


async def printed(
    cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str], *arguments: str, count: int = 0
) -> list[str]:
    """Return the first `count` lines that `consume` prints, or all until there are no more records."""
    end = ("--max-messages", str(count)) if count else ("--timeout", "2")
    assert await run(cluster, "consume", *arguments, *end) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


# --- consume ------------------------------------------------------------------------------------------------------------


@virtual
async def test_partitions_and_positions(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with() as cluster:
        for arguments, expected in (
            ("-p 1 --from earliest", "1@0 1@1 1@2 1@3 1@4"),
            ("--partition 1 --partition 0,1 -o 4", "0@4 1@4"),
            ("--offset -1", "0@4 1@4"),
            ("-p 0 -o -99", "0@0 0@1 0@2 0@3 0@4"),
            ("-p 1 -o +3", "1@3 1@4"),
            ("-o 5", ""),
            ("-p 1 --from 2023-11-15T01:13:20Z", "1@3 1@4"),
            ("-p 1 --from 2023-11-15T02:13:20.001+01:00", "1@4"),
            ("--from 1700010800000", "0@3 0@4 1@3 1@4"),
        ):
            lines = await printed(cluster, capsys, *arguments.split(), count=len(expected.split()))
            assert sorted(lines) == expected.split(), arguments


@virtual
async def test_a_duration_counts_from_now(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(1, 1) as cluster:
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", b"of this minute")
        assert await printed(cluster, capsys, "--from", "1h", count=1) == ["of this minute"]


@virtual
async def test_keys(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(2, 1) as cluster:

        async def lines(*flags: str) -> list[str]:
            return await printed(cluster, capsys, "-o", "0", *flags, count=2)

        assert await lines("--key") == ["null\t0@0", "k1\t0@1"]
        assert await lines("--key", "-K", ": ") == ["null: 0@0", "k1: 0@1"]
        assert await lines("-K", "\\t") == ["null\t0@0", "k1\t0@1"]
        for flags in (("--json",), ("--json", "--key"), ("--format", "json")):
            found = [json.loads(line) for line in await lines(*flags)]
            assert [(each["key"], each["value"]) for each in found] == [(None, "0@0"), ("k1", "0@1")]


def test_keys_on_a_terminal_are_escaped() -> None:
    to_line = record_format("value", for_terminal=True, key_separator=b"\t")
    assert to_line(Record("t", 0, 0, key=b"a\tb\x1b\xff", value=None)) == b"a\\tb\\x1b\\xff\tnull"
    plain = record_format("value", for_terminal=False, key_separator=b"\t")
    assert plain(Record("t", 0, 0, key=b"a\tb\x1b\xff", value=b"\x00")) == b"a\tb\x1b\xff\t\x00"


@virtual
async def test_partitions_and_offsets_that_do_not_exist() -> None:
    async with cluster_with() as cluster:
        for arguments, message in (
            ("-p 0,7", "t: there is no partition 7; t has partitions 0 to 1"),
            ("-p 1 -o 6", "t-1@6: no such offset; t-1 has offsets 0 to 4"),
            (
                "-o 6",
                "t-0@6: no such offset; t-0 has offsets 0 to 4; --partition chooses the partitions to read",
            ),
        ):
            with pytest.raises(UsageError) as caught:
                await run(cluster, "consume", *arguments.split())
            assert str(caught.value) == message


@virtual
async def test_after_an_offset_that_retention_has_deleted_the_earliest_records_follow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with cluster_with(5, 1) as cluster:
        log = log_of(cluster, "t", 0)
        fetching = cluster.faults.on("Fetch", topic="t").hold()
        consuming = asyncio.create_task(run(cluster, "consume", "-o", "1", "--max-messages", "2"))
        await fetching.wait_hit()
        log.delete_records(3)
        fetching.release()
        assert await consuming == 0
    assert capsys.readouterr().out.split() == ["0@3", "0@4"]


@virtual
async def test_a_group_starts_at_a_time_only_without_a_commit(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with() as cluster:
        cluster.commit("g", {("t", 1): 2})
        group = ("--group", "g", "--from")
        lines = await printed(cluster, capsys, *group, "2023-11-15T01:13:20Z")
        assert sorted(lines) == ["0@3", "0@4", "1@2", "1@3", "1@4"]
        assert [each.offset for each in cluster.group("g").offsets.values()] == [5, 5]
        assert await printed(cluster, capsys, *group, "2023-11-14T00:00Z") == []


@virtual
async def test_a_group_that_started_at_a_time_commits_what_it_has_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if these are not the last records of the log."""
    async with cluster_with(5, 1) as cluster:
        group = ("--group", "g", "--from", "2023-11-14T23:00Z")
        runs = [await printed(cluster, capsys, *group, count=1) for _ in range(3)]
        assert runs == [["0@1"], ["0@2"], ["0@3"]]


@virtual
async def test_a_partition_is_read_without_the_group_of_a_shared_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCGROUP_GROUP_ID", "g")
    async with cluster_with(2) as cluster:
        assert await printed(cluster, capsys, "-p", "1", "--from", "earliest", count=2) == ["1@0", "1@1"]
        assert cluster.group("g").offsets == {}
        assert len(await printed(cluster, capsys, "--from", "earliest", count=4)) == 4
        assert cluster.group("g").offsets != {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("consume --offset 5 --from earliest", "not allowed with argument -o/--offset"),
        ("consume --json --format value", "not allowed with argument --json"),
        ("consume --group g --partition 0", "--partition cannot be combined with a group"),
        ("consume --group g -p 0 --offset 5", "--partition and --offset cannot be combined with a group"),
        ("consume -X group.id=g --offset earliest", "--offset cannot be combined with a group"),
        ("consume --json --key-separator :", "--key-separator cannot be combined with JSON"),
        ("consume --missing-topics wait", "--missing-topics is for --group"),
        ("consume --partition one", "'one' is not a partition"),
        ("consume --from soon", "'soon' is not earliest, latest, a time with its zone"),
        ("consume --offset @1700000000", "--from takes a time"),
        ("produce --key k --key-separator :", "not allowed with argument -k/--key"),
        ("produce --header trace:4711", "'trace:4711' is not NAME=VALUE"),
        ("produce --header =4711", "'=4711' is not NAME=VALUE"),
        ("produce --header \udcff=1", "has a name that is not UTF-8"),
        ("produce --partition -1", "'-1' is not a partition, 0 or more"),
    ],
)
def test_what_excludes_what(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    command, *more = arguments.split(" ")
    with pytest.raises(SystemExit) as caught:
        main([command, "-b", "localhost:9", "-t", "t", *more])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


# --- topics that do not exist -----------------------------------------------------------------------------------------


@virtual
async def test_a_group_waits_for_a_missing_topic(capsys: pytest.CaptureFixture[str]) -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        arguments = ("--group", "g", "--missing-topics", "wait", "--max-messages", "1")
        consuming = asyncio.create_task(run(cluster, "consume", *arguments))
        await asyncio.sleep(60)
        assert not consuming.done()
        cluster.create_topic("t", 1)
        cluster.produce("t", b"the first one", partition=0)
        assert await consuming == 0
        assert capsys.readouterr().out == "the first one\n"
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await run(cluster, "consume", "--group", "h", "-t", "later")


def test_work_waits_for_a_missing_topic() -> None:
    arguments = ["work", "m:f", "-b", "localhost:9", "--group", "g", "--topics", "t"]
    assert _queue(_parser().parse_args(arguments)).config.missing_topics == "error"
    options = _parser().parse_args([*arguments, "--missing-topics", "wait"])
    assert _queue(options).config.missing_topics == "wait"


@virtual
@pytest.mark.parametrize(
    "creating", [("-X", "allow.auto.create.topics=true"), pytest.param((), marks=pytest.mark.full)]
)
async def test_a_look_up_creates_no_topic(creating: tuple[str, ...]) -> None:
    async with EmbeddedCluster(nodes=1, seed=1, auto_create_topics=True) as cluster:
        cluster.create_topic("letters", 1)
        cluster.produce("letters", b"without headers", partition=0)
        at = ("-b", cluster.bootstrap_servers, *creating)
        for command in (
            ("consume", "-t", "nowhere"),
            ("consume", "-t", "nowhere", "-p", "0", "-o", "3"),
            ("dlq", "list", "nowhere"),
            ("dlq", "show", "nowhere", "0@0"),
            ("dlq", "replay", "nowhere", "--yes"),
            ("dlq", "replay", "letters", "--yes", "--to", "nowhere"),
        ):
            options = _parser().parse_args([*command, *at])
            with pytest.raises(AsyncGroupError, match="nowhere"):
                await options.run(options)
            assert list(cluster.topics) == ["letters"], command


# --- produce ------------------------------------------------------------------------------------------------------------


@virtual
async def test_keys_headers_and_a_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    headers = ("-H", "trace=4711", "--header", "trace=a=b", "-H", "empty=", "-H", os.fsdecode(b"raw=\xff"))
    async with EmbeddedCluster(nodes=1) as cluster:
        cluster.create_topic("t", 3)
        assert await run(cluster, "produce", "-p", "2", "-k", "the key", *headers, str(file)) == 0
        assert capsys.readouterr().err.startswith("2 records (6 B) in ")
        assert [(each.key, each.value) for each in cluster.records("t", 2)] == [
            (b"the key", b"one"),
            (b"the key", b"two"),
        ]
        expected = [("trace", b"4711"), ("trace", b"a=b"), ("empty", b""), ("raw", b"\xff")]
        assert [list(each.headers) for each in cluster.records("t")] == [expected, expected]
        file.write_bytes(b"k\xff3")
        assert await run(cluster, "produce", "-K", os.fsdecode(b"\xff"), str(file)) == 0
        assert capsys.readouterr().err.startswith("1 record (3 B) in ")
        assert (b"k", b"3") in [(each.key, each.value) for each in cluster.records("t")]
        with pytest.raises(AsyncGroupError, match=r"t-3.*the topic has 3 partitions"):
            await run(cluster, "produce", "-p", "3", str(file))
