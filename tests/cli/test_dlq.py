"""`dlq list`, `show` and `replay`: what they print, what they write, and errors before anything is written."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import Producer, ProducerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli import main
from asyncgroup.cli.app import _parser
from asyncgroup.cli.dead_letter_rows import DeadLetterRow
from asyncgroup.cli.offset_spans import OffsetSpan, parse_spans
from asyncgroup.cli.replaying import ReplayStopped
from asyncgroup.cli.tables import shown_time
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import BrokerError, UsageError
from asyncgroup.group import ConsumerGroup
from asyncgroup.model import Header, Record
from asyncgroup.workqueue.copies import dead_letter_copy, retry_copy
from tests.cli.programs import LIMIT, broker, command, environment, run

DLQ = "orders-billing-DLQ"
BORN = 1_700_000_000_000
"""Timestamp of the first original record, in ms."""


def original(number: int) -> Record:
    key, value = b"key%d" % number, b"value %d" % number
    return Record("orders", number % 3, 100 + number, BORN + number, 0, key, value, [("trace", b"abc")])


def dead_letter(number: int, reason: str) -> dict[str, Any]:
    """Return the arguments of `Producer.send` for the dead letter of a record; every third one was in the retry topic."""
    record = original(number)
    if number % 3 == 2:
        retried = retry_copy(record, "orders-billing-RETRY", "billing", 5, BORN, attempt=1)
        record = Record(
            "orders-billing-RETRY", 0, 7, record.timestamp, 0, record.key, record.value, retried.headers
        )
    copy = dead_letter_copy(record, DLQ, "billing", number + 1, reason)
    return {"value": copy.value, "key": copy.key, "headers": copy.headers, "timestamp": copy.timestamp}


@asynccontextmanager
async def cluster_with(count: int = 6) -> AsyncIterator[EmbeddedCluster]:
    """A cluster with `orders` (3 partitions), `other` (1), and `count` dead letters, in turn in 2 partitions."""
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        for name, partitions in (("orders", 3), ("other", 1), (DLQ, 2)):
            cluster.create_topic(name, partitions)
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(count):
                arguments = dead_letter(number, f"ValueError: bad {number % 2}")
                await producer.send(DLQ, partition=number % 2, **arguments)
        yield cluster


async def add(
    cluster: EmbeddedCluster, value: bytes, headers: Sequence[Header] = (), partition: int = 0
) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        await producer.send(DLQ, value, headers=headers, partition=partition, timestamp=BORN)


async def dlq(cluster: EmbeddedCluster, action: str, *arguments: str) -> int:
    """Run a command on the topic in this event loop; return its exit code."""
    options = _parser().parse_args(["dlq", action, DLQ, *arguments, "-b", cluster.bootstrap_servers])
    return int(await options.run(options))


def values(cluster: EmbeddedCluster, topic: str = "orders") -> list[bytes]:
    return sorted(record.value or b"" for record in cluster.records(topic))


# --- list ---------------------------------------------------------------------------------------------------------------


def test_list_as_a_process_prints_a_table_and_a_summary() -> None:
    with broker("--topic", f"{DLQ}:1") as servers:
        asyncio.run(produce(servers, [dead_letter(4, "ValueError: bad"), dead_letter(2, "Timeout\x1b[31m")]))
        ended = run("dlq", "list", DLQ, "-b", servers)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [line.split() for line in ended.stdout.splitlines() if line.strip(" ─")]
    assert lines == [
        ["record", "time", "origin", "group", "deliveries", "key", "reason"],
        ["0@0", "2023-11-14", "22:13:20.004Z", "orders-1@104", "billing", "5", "key4", "ValueError:", "bad"],
        ["0@1", "2023-11-14", "22:13:20.002Z", "orders-2@102", "billing", "3", "key2", r"Timeout\x1b[31m"],
        [f"{DLQ}:", "2", "records"],
        ["1", r"Timeout\x1b[31m"],
        ["1", "ValueError:", "bad"],
    ]


async def produce(servers: str, records: Sequence[dict[str, Any]]) -> None:
    async with Producer(servers) as producer:
        for arguments in records:
            await producer.send(DLQ, **arguments)


async def test_list_reads_every_partition_and_counts_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(5) as cluster:
        await add(cluster, b"of another tool")
        assert await dlq(cluster, "list", "--max", "4") == 0
    out = capsys.readouterr().out
    places = [line.split()[0] for line in out.splitlines() if "@" in line]
    assert places == ["0@0", "0@1", "0@2", "0@3"]
    assert "2 more are not listed" in out
    assert f"{DLQ}: 6 records" in out
    assert [line.split(maxsplit=1) for line in out.splitlines()[-3:]] == [
        ["3", "ValueError: bad 0"],
        ["2", "ValueError: bad 1"],
        ["1", "-"],
    ]


async def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(2) as cluster:
        await add(cluster, b"of another tool")
        assert await dlq(cluster, "list", "--json") == 0
    first, foreign, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "partition": 0,
        "offset": 0,
        "timestamp": BORN,
        "time": "2023-11-14 22:13:20.000Z",
        "origin_topic": "orders",
        "origin_partition": 0,
        "origin_offset": 100,
        "group": "billing",
        "deliveries": 1,
        "reason": "ValueError: bad 0",
        "key": "key0",
    }
    assert (second["partition"], second["origin_offset"], second["deliveries"]) == (1, 101, 2)
    unknown = ("origin_topic", "origin_partition", "origin_offset", "group", "deliveries", "reason", "key")
    assert [foreign[name] for name in unknown] == [None] * 7


async def test_list_of_an_empty_topic(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(0) as cluster:
        assert await dlq(cluster, "list") == 0
    assert capsys.readouterr().out == f"{DLQ}: 0 records\n"


async def test_list_ends_after_markers_and_leaves_aborted_records_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with cluster_with(1) as cluster:
        config = ProducerConfig(transactional_id="t")
        async with Producer(cluster.bootstrap_servers, config) as producer:
            with pytest.raises(RuntimeError):
                async with producer.transaction():
                    await producer.send(DLQ, b"aborted", partition=0)
                    raise RuntimeError
            async with producer.transaction():
                await producer.send(DLQ, b"committed", partition=1)
        assert await dlq(cluster, "list", "--json") == 0
        places = [
            (row["partition"], row["offset"]) for row in map(json.loads, capsys.readouterr().out.splitlines())
        ]
        assert places == [(0, 0), (1, 0)]
        assert await dlq(cluster, "list", "--json", "-X", "isolation.level=read_uncommitted") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("REAL_TOPIC", b"orders")], ("orders", None, None)),
        ([("REAL_TOPIC", b"orders"), ("ORIGIN_MESSAGE_ID", b"12:7:0")], ("orders", None, None)),
        (
            [("__dlq.errors.topic", b"orders"), ("__dlq.errors.group", b"billing")],
            ("orders", "billing", None),
        ),
        ([("__dlq.errors.delivery.count", b"5")], (None, None, 5)),
        ([("RECONSUMETIMES", b"3")], (None, None, 3)),
        ([("__dlq.errors.delivery.count", b"-5"), ("RECONSUMETIMES", b"+3")], (None, None, None)),
        ([("__dlq.errors.delivery.count", b"9" * 40)], (None, None, None)),
        (
            [("REAL_TOPIC", None), ("__dlq.errors.group", b""), ("REAL_SUBSCRIPTION", b"\xff")],
            (None, "\\xff", None),
        ),
    ],
)
def test_headers_that_are_incomplete_or_broken(headers: list[Header], expected: tuple[object, ...]) -> None:
    row = DeadLetterRow.of(Record(DLQ, 0, 1, headers=headers))
    assert (row.origin_topic, row.group, row.deliveries) == expected
    assert row.origin_partition is None
    assert len(row.cells()) == 7


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [(0, "1970-01-01 00:00:00.000Z"), (-1, "-"), (1 << 62, "-"), (BORN + 7, "2023-11-14 22:13:20.007Z")],
)
def test_the_time_of_a_record(timestamp: int, shown: str) -> None:
    assert shown_time(timestamp) == shown


# --- show ---------------------------------------------------------------------------------------------------------------


async def test_show_prints_headers_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(4) as cluster:
        assert await dlq(cluster, "show", "1@1") == 0
        shown = capsys.readouterr().out.splitlines()
        assert await dlq(cluster, "show", "1", "1") == 0
        assert capsys.readouterr().out.splitlines() == shown
    assert shown[0] == f"{DLQ}-1@1"
    assert {line.strip() for line in shown} >= {
        "origin      orders-0@103",
        "group       billing",
        "deliveries  4",
        "reason      ValueError: bad 1",
        "key         key3",
        "trace: abc",
        "REAL_TOPIC: orders",
        "ORIGIN_MESSAGE_ID: orders-0@103",
        "__dlq.errors.delivery.count: 4",
    }
    assert shown[-2:] == ["value (7 bytes)", "value 3"]


async def test_show_as_json_has_every_byte(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(0) as cluster:
        await add(cluster, b"\xff\x00", [("bin", b"\xfe"), ("none", None), ("REAL_TOPIC", b"orders")])
        assert await dlq(cluster, "show", "0@0", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["value"] == {"base64": "/wA="}
    assert shown["headers"] == [["bin", {"base64": "/g=="}], ["none", None], ["REAL_TOPIC", "orders"]]
    assert shown["dead_letter"]["origin_topic"] == "orders"


async def test_json_has_escapes_for_what_a_terminal_would_execute(capsys: pytest.CaptureFixture[str]) -> None:
    value = "\x9b2J\u2028\u202e"
    async with cluster_with(0) as cluster:
        await add(cluster, value.encode(), [("REAL_TOPIC", value.encode())])
        for command in (["show", "0@0"], ["list"]):
            assert await dlq(cluster, *command, "--json") == 0
            (line,) = capsys.readouterr().out.splitlines()
            assert line.isprintable()
            assert json.loads(line)["origin_topic" if command == ["list"] else "value"] == value


async def test_show_escapes_control_characters_and_keeps_lines(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(0) as cluster:
        await add(cluster, b'{\n  "a": "\x1b[2J"\n}', [("h\x1b", b"\x07")])
        assert await dlq(cluster, "show", "0@0") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[-3:] == ["{", '  "a": "\\x1b[2J"', "}"]


async def test_a_value_in_chunks_is_one_record(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(1) as cluster:
        config = ProducerConfig(chunking=True, max_chunk_size=2_000)
        async with Producer(cluster.bootstrap_servers, config) as producer:
            await producer.send(DLQ, b"x" * 5_000, partition=0, headers=[("REAL_TOPIC", b"other")])
        assert await dlq(cluster, "list", "--json") == 0
        places = [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()]
        assert places == [0, 1]
        assert await dlq(cluster, "show", "0@1", "--json") == 0
        assert json.loads(capsys.readouterr().out)["value"] == "x" * 5_000
        assert await dlq(cluster, "replay", "--offsets", "0@1", "--yes") == 0
        assert values(cluster, "other") == [b"x" * 5_000]


async def test_show_names_what_is_there_instead() -> None:
    async with cluster_with(0) as cluster:
        async with Producer(cluster.bootstrap_servers, ProducerConfig(transactional_id="t")) as producer:
            async with producer.transaction():
                await producer.send(DLQ, b"committed", partition=0)

        async def error(place: str) -> str:
            with pytest.raises(UsageError) as caught:
                await dlq(cluster, "show", place)
            return str(caught.value)

        assert await error("0@2") == f"{DLQ}-0@2: no such offset; {DLQ}-0 has offsets 0 to 1"
        assert await error("1@0") == f"{DLQ}-1@0: no such offset; {DLQ}-1 is empty"
        assert await error("2@0") == f"{DLQ}-2@0: there is no partition 2; {DLQ} has partitions 0 to 1"
        assert await error("0@1") == f"{DLQ}-0@1: no record has this offset, and none follows"
        await add(cluster, b"next")
        assert "(it was compacted, or is a marker of a transaction); the next one is 0@2" in await error(
            "0@1"
        )


# --- replay -------------------------------------------------------------------------------------------------------------


async def test_replay_restores_the_originals(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(6) as cluster:
        assert await dlq(cluster, "replay", "--yes") == 0
        restored = sorted(cluster.records("orders"), key=lambda record: record.timestamp)
        assert len(cluster.records(DLQ)) == 6
    for number, record in enumerate(restored):
        expected = original(number)
        assert (record.partition, record.timestamp) == (expected.partition, expected.timestamp)
        assert (record.key, record.value, list(record.headers)) == (
            expected.key,
            expected.value,
            [("trace", b"abc")],
        )
    assert len(restored) == 6
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"{DLQ}-0@0 -> orders-0@0"
    assert len(out.splitlines()) == 6
    assert err == f"6 records replayed, the last one {DLQ}-1@2\n"


async def test_replay_drops_the_headers_of_queues_only() -> None:
    dropped = ["RECONSUMETIMES", "DELAY_TIME", "ag-deliver-at", "__dlq.errors.message", "__dlq.errors.later"]
    kept: list[Header] = [("ag-ordering-key", b"k"), ("reconsumetimes", b"1"), ("a", None), ("a", b"2")]
    async with cluster_with(0) as cluster:
        await add(cluster, b"x", [("REAL_TOPIC", b"other"), *((name, b"1") for name in dropped), *kept])
        assert await dlq(cluster, "replay", "--yes") == 0
        assert [list(record.headers) for record in cluster.records("other")] == [kept]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--offsets", "0@1"], [2]),
        (["--offsets", "0@0-1,1@2"], [0, 2, 5]),
        (["--offsets", "0@0-1", "--offsets", "0@1-2"], [0, 2, 4]),
        (["--match", "bad 1"], [1, 3, 5]),
        (["--match", "bad 1", "--offsets", "0@0,1@0"], [1]),
        (["--match", "no such reason"], []),
    ],
)
async def test_replay_of_a_selection(arguments: list[str], expected: list[int]) -> None:
    async with cluster_with(6) as cluster:
        assert await dlq(cluster, "replay", "--yes", *arguments) == 0
        assert values(cluster) == [b"value %d" % number for number in expected]


async def test_replay_to_another_topic_and_a_partition_that_is_gone() -> None:
    async with cluster_with(3) as cluster:
        await add(cluster, b"of another tool")
        assert await dlq(cluster, "replay", "--yes", "--to", "other") == 0
        assert values(cluster, "other") == [b"of another tool", b"value 0", b"value 1", b"value 2"]
        await add(cluster, b"moved", [("ORIGIN_MESSAGE_ID", b"other-7@3")], partition=1)
        assert await dlq(cluster, "replay", "--yes", "--match", "", "--offsets", "1@1") == 0
        assert b"moved" in values(cluster, "other")


async def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(3) as cluster:
        assert await dlq(cluster, "replay", "--dry-run", "--group", "again") == 0
        assert cluster.records("orders") == []
        assert cluster.history.of("OffsetCommit") == []
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{DLQ}-0@0 -> orders-0",
        f"{DLQ}-0@1 -> orders-2",
        f"{DLQ}-1@0 -> orders-1",
    ]
    assert err == "would replay 3 records: 3 to orders\n"


async def test_with_a_group_each_record_is_replayed_once(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster_with(4) as cluster:
        again = ("replay", "--yes", "--group", "again")
        assert await dlq(cluster, *again) == 0
        offsets = cluster.group("again").offsets
        assert {tp.partition: committed.offset for tp, committed in offsets.items()} == {0: 2, 1: 2}
        capsys.readouterr()
        assert await dlq(cluster, *again) == 0
        assert capsys.readouterr().err == f"{DLQ}: no dead letters to replay\n"
        await add(cluster, b"late", [("REAL_TOPIC", b"other")], partition=1)
        assert await dlq(cluster, *again) == 0
        assert (len(values(cluster)), values(cluster, "other")) == (4, [b"late"])


async def test_a_group_with_members_is_refused_after_one_record(capsys: pytest.CaptureFixture[str]) -> None:
    joined = asyncio.Event()

    async def wait(_session: Any, claim: Any) -> None:
        joined.set()
        await claim.wait_ended()

    async with cluster_with(4) as cluster:
        async with ConsumerGroup(cluster.bootstrap_servers, "busy", ConsumerConfig()) as group:
            running = asyncio.create_task(group.run(DLQ, wait))
            await joined.wait()
            with pytest.raises(ReplayStopped, match=r"was written, but not committed: .*UNKNOWN_MEMBER_ID"):
                await dlq(cluster, "replay", "--yes", "--group", "busy")
            await group.aclose()
            await running
        assert len(cluster.records("orders")) == 1
    assert capsys.readouterr().err == f"1 of 4 records replayed, the last one {DLQ}-0@0\n"


async def test_a_failure_stops_and_names_the_last_record_that_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with cluster_with(6) as cluster:
        cluster.faults.on("Produce", nth=3).error("INVALID_RECORD")
        with pytest.raises(ReplayStopped) as caught:
            await dlq(cluster, "replay", "--yes", "--group", "again")
        assert str(caught.value).startswith(f"{DLQ}-0@2 was not written to orders-1: ")
        assert "INVALID_RECORD" in str(caught.value)
        assert capsys.readouterr().err == f"2 of 6 records replayed, the last one {DLQ}-0@1\n"
        offsets = cluster.group("again").offsets
        assert {tp.partition: committed.offset for tp, committed in offsets.items()} == {0: 2}
        assert await dlq(cluster, "replay", "--yes", "--group", "again") == 0
        assert values(cluster) == [b"value %d" % number for number in range(6)]


@pytest.mark.parametrize("group", [[], ["--group", "again"]])
async def test_a_record_that_may_have_been_written(
    capsys: pytest.CaptureFixture[str], group: list[str]
) -> None:
    """No response: the error does not say that the record is not there, and says what a second replay does."""
    async with cluster_with(6) as cluster:
        cluster.faults.on("Produce", nth=3, times=None).drop()
        with pytest.raises(ReplayStopped) as caught:
            await dlq(cluster, "replay", "--yes", *group)
        text = str(caught.value)
        assert text.startswith(f"{DLQ}-0@2 was perhaps written to orders-1: ")
        assert text.endswith("; look for it there before you replay it again")
        assert len(cluster.records("orders")) == 3
    assert capsys.readouterr().err.startswith("2 of 6 records replayed, the last one ")


def test_the_help_of_replay_says_who_gets_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["dlq", "replay", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert (
        "every group that reads these topics gets the records again, not only the one that failed"
        in help_text
    )


@pytest.mark.real
async def test_sigterm_ends_after_the_record_that_is_being_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with cluster_with(6) as cluster:
        cluster.faults.on("Produce", nth=3).observe(lambda _: signal.raise_signal(signal.SIGTERM))
        assert await dlq(cluster, "replay", "--yes", "--group", "again") == 143
        written = len(cluster.records("orders"))
        assert 3 <= written < 6
        assert f"{written} of 6 records replayed, the last one" in capsys.readouterr().err
        assert await dlq(cluster, "replay", "--yes", "--group", "again") == 0
        assert values(cluster) == [b"value %d" % number for number in range(6)]


# --- what is refused before anything is written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([], "has no header with its origin topic: choose a topic with --to"),
        (
            [("REAL_TOPIC", b"persistent://public/default/t")],
            "'persistent://public/default/t', which it cannot be sent to",
        ),
        ([("REAL_TOPIC", b"\xff\x1b")], "which it cannot be sent to"),
        ([("REAL_TOPIC", DLQ.encode())], "which it cannot be sent to"),
        (
            [("REAL_TOPIC", b"nowhere")],
            "cannot be sent to nowhere: topic 'nowhere': UNKNOWN_TOPIC_OR_PARTITION",
        ),
        ([("__dlq.errors.topic", b"nowhere")], "cannot be sent to nowhere"),
    ],
)
async def test_a_record_without_a_way_back_stops_the_plan(headers: list[Header], words: str) -> None:
    async with cluster_with(2) as cluster:
        await add(cluster, b"x", headers, partition=1)
        with pytest.raises(UsageError) as caught:
            await dlq(cluster, "replay", "--yes")
        assert str(caught.value).startswith(f"{DLQ}-1@1 ")
        assert words in str(caught.value)
        assert "\x1b" not in str(caught.value)
        assert cluster.records("orders") == []


async def test_offsets_that_do_not_exist_stop_the_plan() -> None:
    async with cluster_with(2) as cluster:
        for offsets, words in (
            ("0@0,0@1", f"{DLQ}-0@1: no such offset; {DLQ}-0 has offset 0"),
            ("0@0-5", f"{DLQ}-0@0-5: no such offset"),
            ("7@0", f"{DLQ}-7@0: there is no partition 7"),
        ):
            with pytest.raises(UsageError) as caught:
                await dlq(cluster, "replay", "--yes", "--offsets", offsets)
            assert words in str(caught.value)
        assert cluster.records("orders") == []


@pytest.mark.parametrize("action", [["list"], ["show", "0@0"], ["replay", "--dry-run"]])
async def test_an_unknown_topic(action: list[str]) -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        with pytest.raises(BrokerError, match=f"topic '{DLQ}': UNKNOWN_TOPIC_OR_PARTITION"):
            await dlq(cluster, *action)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "ACTION"),
        (["list"], "TOPIC"),
        (["list", "no spaces"], "1 to 249 of the characters"),
        (["list", DLQ], "-b/--bootstrap-servers is required"),
        (["list", DLQ, "--max", "0"], "'0' is not a whole number, 1 or more"),
        (["show", DLQ, "-b", "h:1"], "PARTITION@OFFSET"),
        (["show", DLQ, "17", "-b", "h:1"], "'17' is not a record: PARTITION@OFFSET"),
        (["show", DLQ, "0@1-2", "-b", "h:1"], "is not a record"),
        (["show", DLQ, "0", "1", "2", "-b", "h:1"], "unrecognized arguments"),
        (["replay", DLQ, "--offsets", "0@5-3"], "the last offset is before the first one"),
        (["replay", DLQ, "--offsets", "0@-3"], "'0@-3' is not PARTITION@OFFSET"),
        (["replay", DLQ, "--offsets", "٣@٣"], "is not PARTITION@OFFSET"),
        (["replay", DLQ, "--to", "."], "1 to 249 of the characters"),
        (["replay", DLQ, "--to", DLQ, "--yes", "-b", "h:1"], "is the dead letter topic itself"),
        (["replay", DLQ, "--group", "g", "--match", "x", "--yes"], "it excludes --offsets and --match"),
        (["replay", DLQ, "--group", "g", "--offsets", "0@1", "--yes"], "it excludes --offsets and --match"),
        (["replay", DLQ, "--group", " "], "a string that is not empty"),
        (["replay", DLQ, "-b", "h:1"], "--yes is required if standard input is not a terminal"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as caught:
        main(["dlq", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_an_error_is_one_line() -> None:
    with broker("--topic", f"{DLQ}:1") as servers:
        ended = run("dlq", "show", DLQ, "0@0", "-b", servers)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"asyncgroup dlq: {DLQ}-0@0: no such offset; {DLQ}-0 is empty\n"


@pytest.mark.parametrize(
    ("answer", "code", "written"), [(b"y\n", 0, 1), (b"n\n", 1, 0), (b"\n", 1, 0), (b"\x04", 1, 0)]
)
@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo terminals")
def test_replay_asks_on_a_terminal(answer: bytes, code: int, written: int) -> None:
    import pty

    with broker("--topic", f"{DLQ}:1", "--topic", "orders:3") as servers:
        asyncio.run(produce(servers, [dead_letter(0, "bad")]))
        keyboard, terminal = pty.openpty()
        try:
            process = subprocess.Popen(
                command("dlq", "replay", DLQ, "-b", servers),
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(),
            )
            os.write(keyboard, answer)
            out, err = process.communicate(timeout=LIMIT)
        finally:
            os.close(keyboard)
            os.close(terminal)
    assert err.startswith(b"Replay 1 record: 1 to orders? [y/N] ")
    assert (process.returncode, len(out.splitlines())) == (code, written)
    assert (b"nothing was written" in err) is (written == 0)


# --- spans --------------------------------------------------------------------------------------------------------------


def test_spans_are_parsed_and_printed() -> None:
    spans = parse_spans("0@17, 3@0-9")
    assert spans == [OffsetSpan(0, 17, 18), OffsetSpan(3, 0, 10)]
    assert [str(span) for span in spans] == ["0@17", "3@0-9"]
    for text in ("", "0@", "@1", "0@1,", "0@1-", "1-0@2", "99999999999@1"):
        with pytest.raises(ValueError, match="is not PARTITION@OFFSET"):
            parse_spans(text)
