"""`produce`, `consume`, `work` and `dlq` on a real Apache Pulsar."""

from __future__ import annotations

import asyncio
import json
import signal
import textwrap
from pathlib import Path
from uuid import uuid4

import pytest

from tests.apache_pulsar import RunningPulsar
from tests.cli.programs import run, started

EARLY = ("-X", "subscriptionInitialPosition=Earliest")
HANDLERS = """
    async def handle(delivery):
        if delivery.value == b"poison":
            raise ValueError("cannot be handled")
"""


@pytest.mark.full
def test_lines_are_produced_and_consumed(apache_pulsar: RunningPulsar) -> None:
    """Without a subscription twice the same, in a subscription each message once; then by a time."""
    url, topic = apache_pulsar.service_url, f"lines-{uuid4().hex[:8]}"
    produced = run("produce", "-b", url, "-t", topic, "-K", ":", "-H", "trace=4711", stdin="a:1\nb:2\nc:3\n")
    assert (produced.returncode, produced.stdout) == (0, "")
    assert produced.stderr.startswith("3 records (9 B) in ")
    consume = ("consume", "-b", url, "-t", topic)
    for _ in range(2):
        alone = run(*consume, "--from", "earliest", "--key", "--max-messages", "3")
        assert (alone.returncode, alone.stdout, alone.stderr) == (0, "a\t1\nb\t2\nc\t3\n", "")
    group = (*consume, "--group", "g", "--from", "earliest")
    assert run(*group, "--max-messages", "2").stdout == "1\n2\n"
    third = run(*group, "--max-messages", "1", "--json")
    record = json.loads(third.stdout)
    assert record["topic"] == f"persistent://public/default/{topic}"
    assert (record["key"], record["value"], record["headers"]) == ("c", "3", [["trace", "4711"]])
    assert record["message_id"].count(":") >= 2
    assert "offset" not in record
    by_time = run(*consume, "--from", "1h", "--max-messages", "1")
    assert (by_time.stdout, by_time.stderr) == ("1\n", "")
    shared = run(*consume, "--group", "h", *EARLY, "-X", "subscriptionType=Shared", "--max-messages", "3")
    assert (sorted(shared.stdout.split()), shared.stderr) == (["1", "2", "3"], "")
    lz4 = run(
        "produce", "-b", url, "-t", topic, "-X", "compressionType=LZ4", "-X", "sendTimeoutMs=0", stdin="4\n"
    )
    assert lz4.stderr.startswith("1 record (1 B) in ")
    assert run(*consume, "--timeout", "0.5").stdout == ""
    missing = run("consume", "-b", url, "-t", f"no-{topic}")
    assert missing.returncode == 1
    assert "TopicNotFound" in missing.stderr
    assert missing.stderr.count("\n") == 1
    wrong = run("produce", "-b", url, "-t", topic, "-K", ":", stdin="no separator\n")
    assert (wrong.returncode, "line 1 has no separator ':'" in wrong.stderr) == (1, True)


def test_a_handler_works_on_a_subscription(apache_pulsar: RunningPulsar, tmp_path: Path) -> None:
    """One message fails twice, and becomes a dead letter."""
    (tmp_path / "pulsar_handlers.py").write_text(textwrap.dedent(HANDLERS))
    url, topic = apache_pulsar.service_url, f"work-{uuid4().hex[:8]}"
    assert run("produce", "-b", url, "-t", topic, stdin="a\npoison\nb\n").returncode == 0
    work = ("work", "pulsar_handlers:handle", "-b", url, "--group", "billing", "--topics", topic)
    options = ("--from", "earliest", "--json", "--nack-delay", "0", "--max-redeliveries", "1")
    with started(*work, *options, path=[tmp_path]) as program:
        figures = json.loads(program.line())
        while figures["dead_lettered"] == 0:
            figures = json.loads(program.line())
        code, out, err = program.end(signal.SIGINT)
    assert code == 130
    last = json.loads(out.splitlines()[-1])
    assert (last["final"], last["acked"], last["nacked"], last["dead_lettered"]) == (True, 2, 2, 1)
    assert last["problems"] == []
    assert f"subscription billing, shared: {topic}" in err
    dead = run(
        "consume",
        "-b",
        url,
        "-t",
        f"{topic}-billing-DLQ",
        "--from",
        "earliest",
        "--json",
        "--max-messages",
        "1",
    )
    headers = dict(json.loads(dead.stdout)["headers"])
    assert headers["__dlq.errors.message"] == "ValueError: cannot be handled"
    assert headers["REAL_SUBSCRIPTION"] == "billing"


@pytest.mark.full
def test_dead_letters_are_listed_shown_and_sent_back(apache_pulsar: RunningPulsar, tmp_path: Path) -> None:
    """Of a topic with partitions: each goes to the partition of its original, and with --group once."""
    (tmp_path / "failing_handlers.py").write_text(
        "async def handle(delivery):\n    raise ValueError('bad')\n"
    )
    url, topic = apache_pulsar.service_url, f"dead-{uuid4().hex[:8]}"
    asyncio.run(apache_pulsar.admin.create_partitioned_topic(topic, 3))
    assert run("produce", "-b", url, "-t", topic, "-K", ":", stdin="a:1\nb:2\nc:3\n").returncode == 0
    work = ("work", "failing_handlers:handle", "-b", url, "--group", "billing", "--topics", topic)
    options = ("--from", "earliest", "--json", "--nack-delay", "0", "--max-redeliveries", "0")
    dlq = f"{topic}-billing-DLQ"
    with started(*work, *options, path=[tmp_path]) as program:
        while json.loads(program.line())["dead_lettered"] < 3:
            pass
        assert program.end(signal.SIGINT)[0] == 130
    listed = run("dlq", "list", dlq, "-b", url, "--json")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["reason"] for row in rows] == ["ValueError: bad"] * 3, listed
    assert {row["key"]: row["group"] for row in rows} == {"a": "billing", "b": "billing", "c": "billing"}
    shown = run("dlq", "show", dlq, rows[1]["message_id"], "-b", url, "--json")
    assert json.loads(shown.stdout)["key"] == rows[1]["key"], shown
    place = rows[2]["message_id"].split(":")
    missing = f"{place[0]}:{int(place[1]) + 9}:-1"
    absent = run("dlq", "show", dlq, missing, "-b", url)
    text = f"asyncgroup dlq: {dlq}@{missing}: no message has this id, and none follows\n"
    assert (absent.returncode, absent.stderr) == (1, text)
    foreign = run("dlq", "show", dlq, "0:0:-1", "-b", url)
    text = f"asyncgroup dlq: {dlq}@0:0:-1: no message has this id; the next one is {rows[0]['message_id']}\n"
    assert (foreign.returncode, foreign.stderr) == (1, text)
    replay = ("dlq", "replay", dlq, "-b", url, "--yes", "--group", "again")
    first = run(*replay)
    assert (first.returncode, len(first.stdout.splitlines())) == (0, 3), first
    targets = {line.split(" -> ")[1].split(":")[2] for line in first.stdout.splitlines()}
    assert targets == {row["origin_message_id"].split(":")[2] for row in rows}
    assert run(*replay).stderr == f"{dlq}: no dead letters to replay\n"
    back = run("consume", "-b", url, "-t", topic, "--from", "earliest", "--max-messages", "6", "--json")
    messages = [json.loads(line) for line in back.stdout.splitlines()]
    assert sorted(message["key"] for message in messages) == ["a", "a", "b", "b", "c", "c"]
    assert not any("headers" in message for message in messages)
