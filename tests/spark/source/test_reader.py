"""The reader as used by Spark's processes, without Spark."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from asyncgroup.spark.data_source import AsyncGroupDataSource
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.readers import AsyncGroupStreamReader, TaskRanges
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import TOPIC, committed, offsets, produce, settings

pytestmark = pytest.mark.kafka(topics={TOPIC: 2})

RUNNER = """
import pickle, sys
from asyncgroup.spark.source.driver import broker_client, group_committer
group_committer.COMMIT_WAIT = broker_client.CLOSE_TIMEOUT = 30.0
reader = pickle.loads(bytes.fromhex(sys.argv[1]))
try:
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    print("ready", flush=True)
    while sys.argv[2] == "asking":
        reader.latestOffset(end, limit)
    sys.stdin.read()
except BaseException as error:
    if not reader._terminated or type(error).__name__ not in ("CancelledError", "SystemExit"):
        raise
finally:
    reader.stop()
"""
"""A program that does the same as Spark's runner of a stream, and ends in the same way.

Its timeouts are longer: the default of a second or two for a commit may be too short on a busy machine.
"""


def test_a_reader_is_pickled_without_its_connections(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 5)
    reader = AsyncGroupStreamReader(settings(kafka_server))
    start = reader.initialOffset()
    assert start == {TOPIC: {"0": 0, "1": 0}}
    copy = pickle.loads(pickle.dumps(reader))
    end = copy.latestOffset(start, copy.getDefaultReadLimit())
    assert end == {TOPIC: {"0": 5, "1": 0}} == copy.reportLatestOffset()
    (part,) = pickle.loads(pickle.dumps(copy.partitions(start, end)))
    assert isinstance(part, TaskRanges)
    assert part.ranges == (OffsetRange(TOPIC, 0, 0, 5),)
    (batch,) = copy.read(part)
    assert batch.column("offset").to_pylist() == [0, 1, 2, 3, 4]
    for each in (reader, copy):
        each.stop()
        each.stop()


def test_an_unchanged_offset_is_returned_as_the_same_json(kafka_server: KafkaServer) -> None:
    """Spark compares the JSON text, in which the order of topics and partitions matters."""
    reader = AsyncGroupStreamReader(settings(kafka_server))
    start = {TOPIC: {"1": 0, "0": 0}}
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) is start
    assert reader.partitions(start, start) == []
    assert list(reader.read(TaskRanges(()))) == []
    reader.stop()


@pytest.mark.parametrize("stream", [True, False])
def test_options_without_effect_are_logged_once_per_query(
    kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """In the process that plans the query: Spark creates the source several times before, in other processes."""
    options = {
        "kafka.bootstrap.servers": kafka_server.bootstrap_servers,
        "subscribe": TOPIC,
        "kafka.max.poll.records": "500",
    }
    with caplog.at_level(logging.WARNING, "asyncgroup"):
        for _ in range(3):
            source = AsyncGroupDataSource(options)
            schema = source.schema()
            made = source.streamReader(schema) if stream else source.reader(schema)
        assert caplog.messages == []
        reader = pickle.loads(pickle.dumps(made))
        if stream:
            start = reader.initialOffset()
            reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
            reader.stop()
        else:
            reader.partitions()
    assert len([message for message in caplog.messages if "max.poll.records" in message]) == 1


@pytest.mark.parametrize(("options", "rows"), [({}, 2**63 - 1), ({"max_offsets_per_trigger": 7}, 7)])
def test_the_default_limit_never_looks_like_that_of_trigger_once(
    kafka_server: KafkaServer, options: dict[str, Any], rows: int
) -> None:
    produce(kafka_server, 20)
    reader = AsyncGroupStreamReader(settings(kafka_server, **options))
    assert reader.getDefaultReadLimit() == ReadMaxRows(rows)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(rows)) == {TOPIC: {"0": min(rows, 20), "1": 0}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {TOPIC: {"0": 20, "1": 0}}
    reader.stop()


@pytest.mark.parametrize(
    ("doing", "end"), [("asking", "SIGTERM"), ("waiting", "SIGTERM"), ("waiting", "input")]
)
def test_spark_stops_a_query(kafka_server: KafkaServer, doing: str, end: str) -> None:
    """By SIGTERM, or by closing stdin; nothing is logged, and the finished offsets are committed."""
    produce(kafka_server, 5)
    reader = AsyncGroupStreamReader(settings(kafka_server, group_id="reports"))
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, pickle.dumps(reader).hex(), doing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "ready\n"
        if doing == "asking":
            kafka_server.history.wait_for("OffsetCommit", count=2, timeout=60)
        if end == "SIGTERM":
            runner.send_signal(signal.SIGTERM)
        _, errors = runner.communicate(timeout=60)
    assert errors == ""
    assert runner.returncode == (128 + signal.SIGTERM if end == "SIGTERM" else 0)
    assert committed(kafka_server, "reports") == (offsets(5, 0) if doing == "asking" else offsets(0, 0))


def test_sigterm_does_not_interrupt_the_stop(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark closes the socket and sends SIGTERM, so it may come when `stop` is closing the connections."""
    events: list[str] = []
    reader = AsyncGroupStreamReader(settings(kafka_server))
    reader.initialOffset()
    progress = reader._driver_progress
    close = progress.stop

    def stop() -> None:
        reader._terminate()
        close()
        events.append("closed")

    monkeypatch.setattr(progress, "stop", stop)
    monkeypatch.setattr(os, "_exit", lambda status: events.append(f"exit {status}"))
    reader.stop()
    assert events == ["closed", f"exit {128 + signal.SIGTERM}"]
