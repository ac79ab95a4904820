"""`produce`, `consume` and `work` on a real Apache Pulsar."""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path
from uuid import uuid4

from tests.apache_pulsar import RunningPulsar
from tests.cli.programs import run, started

HANDLERS = """
    async def handle(delivery):
        if delivery.value == b"poison":
            raise ValueError("cannot be handled")
"""


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
    assert run(*consume, "--from", "1h", "--max-messages", "1").stdout == "1\n"
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
