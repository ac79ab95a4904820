"""The Spark benchmark works: every source, bridge and idle query is measured and every row counted.

The tests check no speed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.wire.batch_view import batch_sizes
from benchmarks.common import ClientFailed
from benchmarks.machine import Conditions
from benchmarks.spark import run as spark_run
from benchmarks.spark.batch_meter import BatchMeter
from benchmarks.spark.cases import BRIDGES, CASES, CLIENTS, STREAMS, WRITERS
from benchmarks.spark.figures import BASELINES, Measurement, summarize
from benchmarks.spark.measured_spark import MeasuredSpark, TurnFailed, measured_spark
from benchmarks.spark.process_tree import tree_cpu
from benchmarks.spark.report import GOALS, show
from benchmarks.spark.schedule import Broker, Turn, measure_all, turns
from tests.broker.internals import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
SILENT = Progress(disable=True)
MEASURED: Mapping[str, list[tuple[str, str]]] = {
    "full": [("1k-small", "asyncgroup"), ("bridge-200", "asyncgroup"), ("latency", "asyncgroup")],
    "soak": [
        ("1k-small", "kafka-tuned"),
        ("1k-small", "asyncgroup"),
        ("1k-small", "asyncgroup-packed"),
        ("bridge-200", "aiokafka"),
        ("bridge-200", "asyncgroup"),
        ("latency", "aiokafka"),
        ("latency", "asyncgroup"),
    ],
}
"""Cases and clients that are measured, in their order: each takes several seconds of Spark."""

LITTLE = ("--quick", "--rows", "400", "--times", "2", "--seconds", "0.2", "--limit", "60")


class InThisProcess(MeasuredSpark):
    """Runs the measured functions with the Spark session of the test suite."""

    def __init__(self, spark: SparkSession) -> None:
        from asyncgroup.spark import register

        register(spark)
        self._spark = spark

    async def measure(self, function: str, settings: Mapping[str, Any], limit: float) -> dict[str, Any]:
        module, _, name = function.partition(":")
        call = getattr(importlib.import_module(module), name)
        async with asyncio.timeout(limit):
            figures: dict[str, Any] = await asyncio.to_thread(self._call, call, dict(settings))
        return figures

    def _call(self, call: Callable[..., dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
        # Spark looks up a sink in the active session, and a new thread has none; this call sets it
        self._spark.createDataFrame([], "nothing int")
        return call(self._spark, settings)


def little(*arguments: str) -> argparse.Namespace:
    options = spark_run.parse([*LITTLE, *arguments])
    options.warm_ups, options.warm_up, options.settle = 0, 1, 0.1
    return options


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("profile", ["full", pytest.param("soak", marks=pytest.mark.soak)])
async def test_sources_and_bridges(
    spark_with_kafka: SparkSession, capsys: pytest.CaptureFixture[str], profile: str
) -> None:
    measured = MEASURED[profile]
    cases, clients = (",".join(dict.fromkeys(names)) for names in zip(*measured, strict=True))
    options = little("--cases", cases, "--only", clients)
    async with EmbeddedCluster() as cluster:
        broker = Broker(cluster.bootstrap_servers, os.getpid())
        found = await measure_all(broker, InThisProcess(spark_with_kafka), options, SILENT, {})
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    assert [(each.case, each.client) for each in found] == measured
    for each in found:
        if each.case in (*STREAMS, *BRIDGES):
            assert each.figures["rows"] == 400
            assert (each.figures["batches"] or 0) >= 2
            assert (each.figures["rate"] or 0) > 0
        else:
            assert 0 < (each.figures["total"] or 0) <= (each.figures["worst"] or 0)
    idle = [
        Measurement(case="idle", client=client, round=1, figures={"share": share, "broker": None})
        for client, share in (("no query", 0.01), ("kafka", 0.25))
    ]
    about = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    show(options, [*found, *idle], Conditions(about, {"asyncgroup": "0"}, {"kafka": "no such jar"}))
    printed = capsys.readouterr().out
    assert all(client in printed for client in options.clients)
    assert "25.0" in printed
    assert "kafka: not measured, no such jar" in printed


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("kafka_at_hand")
def test_the_command() -> None:
    """Run the command with its own broker and Spark, all cases and clients."""
    command = [sys.executable, "-m", "benchmarks", "spark", *LITTLE, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["benchmark"] == "spark"
    if not report["missing"]:
        measured = {(each["case"], each["client"]) for each in report["summaries"]}
        assert measured >= {(case, client) for case in STREAMS for client in ("kafka-tuned", "asyncgroup")}
    assert {each["case"] for each in report["summaries"]} == set(CASES)
    assert report["versions"]["asyncgroup"]


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_sinks(spark_with_kafka: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    options = little("--cases", "sink-200", "--only", ",".join(WRITERS))
    async with EmbeddedCluster() as cluster:
        broker = Broker(cluster.bootstrap_servers, os.getpid())
        found = await measure_all(broker, InThisProcess(spark_with_kafka), options, SILENT, {})
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    assert [(each.case, each.client) for each in found] == [("sink-200", name) for name in WRITERS]
    assert [each.figures["rows"] for each in found] == [400] * len(WRITERS)
    assert min(each.figures["rate"] or 0 for each in found) > 0
    about = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    show(options, found, Conditions(about, {"asyncgroup": "0"}))
    assert "200 B, 400 rows" in capsys.readouterr().out


class Dying(MeasuredSpark):
    """Measures nothing: one function fails, and ends Spark if `dies`; the others return figures."""

    def __init__(self, function: str, *, dies: bool) -> None:
        self._function, self._dies = function, dies
        self.asked: list[str] = []

    async def measure(self, function: str, settings: Mapping[str, Any], limit: float) -> dict[str, Any]:
        self.asked.append(function.rpartition(".")[2])
        if function == self._function:
            raise TurnFailed("module:name: OutOfMemoryError\nJava heap space")
        return {"total": 1.0}

    async def restart_if_lost(self) -> bool:
        self.asked.append("restart_if_lost")
        return self._dies


class Looking(MeasuredSpark):
    """Measures nothing: looks at the topics instead."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self.seen: list[tuple[int, int]] = []
        """Of each turn the number of partitions, and of records in the first record batch."""
        self.names: set[str] = set()

    async def measure(self, function: str, settings: Mapping[str, Any], limit: float) -> dict[str, Any]:
        self.names.add(settings["topic"])
        log = log_of(self._cluster, settings["topic"], 0)
        _, records = next(batch_sizes(log.read(0, 1 << 20)))
        self.seen.append((len(self._cluster.topic(settings["topic"]).partitions), records))
        return {}


async def test_cases_with_the_same_records_share_a_topic() -> None:
    cases = "1k-large,1k-small,source-one,source-three"
    options = little("--cases", cases, "--only", "asyncgroup", "--rows", "400")
    async with EmbeddedCluster() as cluster:
        spark = Looking(cluster)
        await measure_all(Broker(cluster.bootstrap_servers, None), spark, options, SILENT, {})
    assert spark.seen == [(4, 62), (4, 62), (4, 1), (4, 3)]
    assert len(spark.names) == 3


@pytest.mark.parametrize("dies", [True, False])
async def test_a_failed_turn_is_reported_and_the_others_continue(dies: bool) -> None:
    """A restarted Spark is warmed up again, and does not repeat the case that ended the previous one."""
    options = little("--cases", "latency", "--rounds", "2")
    options.rounds, options.warm_ups = 2, 1
    spark, missing = Dying("benchmarks.spark.aiokafka_client:latency", dies=dies), dict[str, str]()
    async with EmbeddedCluster() as cluster:
        broker = Broker(cluster.bootstrap_servers, None)
        found = await measure_all(broker, spark, options, SILENT, missing)
    assert [(each.client, each.round) for each in found] == [("asyncgroup", 1), ("asyncgroup", 2)]
    theirs, ours = ["aiokafka_client:latency", "restart_if_lost"], ["bridge:latency"]
    assert spark.asked == (theirs + ours * 3 if dies else (theirs + ours) * 3)
    assert missing["aiokafka in latency, warming up"].startswith("Java heap space")
    assert ("round 1" in " ".join(missing)) is not dies
    assert ("Spark ended" in " ".join(missing.values())) is dies


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_spark_is_restarted_when_its_java_has_ended() -> None:
    async with measured_spark({}) as spark:
        before = spark.version
        with pytest.raises(TurnFailed, match="no_such_function"):
            await spark.measure("benchmarks.spark.spark_process:no_such_function", {}, 60)
        assert not await spark.restart_if_lost()
        with pytest.raises(TurnFailed):
            await spark.measure("tests.benchmarks.test_spark_smoke:end_java", {}, 60)
        assert await spark.restart_if_lost()
        assert await spark.measure("benchmarks.spark.spark_process:alive", {}, 60) == {"rows": 1}
        assert spark.version == before


def end_java(spark: Any, _settings: object) -> None:
    """Kill Spark's Java, as if it had run out of memory."""
    spark.sparkContext._gateway.proc.kill()
    spark.range(1).count()


async def test_a_spark_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('no Spark in this test')", encoding="ascii")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ClientFailed, match="no Spark in this test"):
        async with measured_spark({}):
            pass


def test_everything_is_measured_by_default() -> None:
    options = spark_run.parse([])
    assert options.cases == list(CASES)
    assert options.clients == list(CLIENTS)
    assert set(BASELINES) == set(CASES)
    assert set(GOALS) <= set(CASES)
    assert spark_run.parse(["--cases", "idle, 1k-small"]).cases == ["1k-small", "idle"]


def test_turns_alternate_after_warm_ups() -> None:
    options = spark_run.parse(["--rounds", "2", "--only", "kafka-tuned,asyncgroup"])
    assert turns(options, ["1k-small", "idle"]) == [
        Turn("1k-small", "kafka-tuned", -1),
        Turn("1k-small", "asyncgroup", -1),
        Turn("1k-small", "kafka-tuned", 0),
        Turn("1k-small", "asyncgroup", 0),
        Turn("1k-small", "kafka-tuned", 1),
        Turn("1k-small", "asyncgroup", 1),
        Turn("idle", "no query", 1),
        Turn("idle", "asyncgroup", 1),
        Turn("1k-small", "kafka-tuned", 2),
        Turn("1k-small", "asyncgroup", 2),
        Turn("idle", "no query", 2),
        Turn("idle", "asyncgroup", 2),
    ]


def test_ratios_are_taken_within_a_round() -> None:
    def measured(client: str, number: int, rate: float, cpu: float | None) -> Measurement:
        return Measurement(case="1k-large", client=client, round=number, figures={"rate": rate, "cpu": cpu})

    tuned, ours = summarize(
        [
            measured("kafka-tuned", 1, 100, 2.0),
            measured("asyncgroup", 1, 200, 1.0),
            measured("kafka-tuned", 2, 10, None),
            measured("asyncgroup", 2, 15, 3.0),
        ]
    )
    assert ours.figures == {"rate": (107.5, 15, 200), "cpu": (2.0, 1.0, 3.0)}
    assert ours.ratios == {"rate": (1.75, 1.5, 2.0), "cpu": (0.5, 0.5, 0.5)}
    assert tuned.figures["cpu"] == (2.0, 2.0, 2.0)
    assert tuned.ratios["rate"] == (1.0, 1.0, 1.0)


def test_the_first_and_the_last_batch_are_not_timed() -> None:
    meter = BatchMeter(40, 10)
    assert meter.add(10, 100.0, 7.0)
    assert meter.add(10, 102.0, 7.5)
    assert meter.add(11, 104.0, 8.0)
    assert not meter.add(9, 110.0, 9.0)
    assert meter.figures() == {"rows": 40, "batches": 4, "rate": 5.25, "cpu": pytest.approx(1e6 / 21)}
    alone = BatchMeter(5, 10)
    assert not alone.add(5, 100.0, None)
    assert alone.figures() == {"rows": 5, "batches": 1, "rate": 0.0, "cpu": None}


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the system has no /proc with CPU times of processes"
)
def test_the_cpu_of_children_counts() -> None:
    before = tree_cpu(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(5_000_000))"], check=True)
    ended = tree_cpu(os.getpid())
    assert before is not None
    assert ended is not None
    assert ended > before
    with subprocess.Popen(
        [sys.executable, "-c", "sum(range(5_000_000)); print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        living, own = tree_cpu(os.getpid()), tree_cpu(child.pid)
        child.communicate(b"\n")
    assert living is not None
    assert own is not None
    assert living > ended
    assert 0 < own < living
    assert tree_cpu(child.pid) is None
