"""The benchmark `consume` works: every record is read, counted and committed. The tests check no speed."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import NoBrokersError
from benchmarks.clients import CASES, Settings
from benchmarks.consume import choose, parse, run
from benchmarks.figures import Measurement, summarize
from benchmarks.meter import LAP, Laps, Meter
from benchmarks.shapes import SHAPES
from benchmarks.topic import Topic
from tests.profiles import current_profile

OWN_AND_AIOKAFKA = ["asyncgroup.batches", "aiokafka.getmany", "asyncgroup.records", "aiokafka.iterate"]
WITHOUT_THREAD = ["asyncgroup.batches-without-thread", "asyncgroup.records-without-thread"]
ROOT = Path(__file__).parents[2]


async def test_every_client_reads_all_and_commits() -> None:
    cases = OWN_AND_AIOKAFKA + (WITHOUT_THREAD if current_profile() == "full" else [])
    async with EmbeddedCluster() as cluster:
        measurements = await run(
            cluster.bootstrap_servers,
            cases,
            records=3_001,
            size=50,
            partitions=2,
            rounds=1,
            limit=30.0,
            progress=Progress(disable=True),
            warm_up=False,
        )
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    assert [(each.case, each.partitions) for each in measurements] == [(case, 2) for case in cases]
    for each in measurements:
        assert (each.records, each.committed) == (3_002, 3_002), "the same number for each partition"
        assert each.bytes == 3_002 * (8 + 50)
        assert 0 <= each.counted < each.records


@pytest.mark.full
@pytest.mark.parametrize("shape", ["one", "three-lz4", "headers"])
async def test_other_shapes_and_ways_to_read(shape: str) -> None:
    cases = ["asyncgroup.merged", "asyncgroup.in-thread", "asyncgroup.queue", "aiokafka.iterate"]
    async with EmbeddedCluster() as cluster:
        measurements = await run(
            cluster.bootstrap_servers,
            cases,
            records=302,
            size=50,
            partitions=2,
            rounds=1,
            limit=30.0,
            progress=Progress(disable=True),
            warm_up=False,
            shape=SHAPES[shape],
        )
    assert [each.case for each in measurements] == cases
    for each in measurements:
        assert (each.records, each.committed, each.bytes) == (302, 302, 302 * (8 + 50))


@pytest.mark.full
async def test_a_hot_partition_and_committed_records() -> None:
    cases = ["asyncgroup.records", "asyncgroup.in-thread", "aiokafka.iterate", "confluent.consume"]
    async with EmbeddedCluster(3) as cluster:
        measurements = await run(
            cluster.bootstrap_servers,
            cases,
            records=20_000,
            size=50,
            partitions=5,
            rounds=1,
            limit=30.0,
            progress=Progress(disable=True),
            warm_up=False,
            skewed=True,
            isolation="read_committed",
        )
    assert [(each.case, each.records, each.committed) for each in measurements] == [
        (case, 20_000, 20_000) for case in cases
    ]


async def test_half_of_the_records_are_in_a_hot_partition() -> None:
    async with EmbeddedCluster() as cluster, Cluster(cluster.bootstrap_servers) as client:
        topic = Topic(client, 3, 101, 10, skewed=True)
        await topic.load(lambda _: None)
        counts = [len(cluster.records(topic.name, partition)) for partition in range(3)]
        settings = Settings(
            bootstrap_servers="", topic="", group_id="", partitions=3, records=topic.records, limit=1, hot=topic.hot
        )  # fmt: skip
        assert counts == [50, 26, 26] == [settings.share(partition) for partition in range(3)]
        await topic.remove([])


def test_options_of_the_cluster_and_of_the_topic() -> None:
    options = parse(["--nodes", "3", "--skew", "--isolation", "read_committed"])
    assert (options.nodes, options.skew, options.isolation) == (3, True, "read_committed")
    options = parse([])
    assert (options.nodes, options.skew, options.isolation) == (1, False, "read_uncommitted")
    with pytest.raises(SystemExit):
        parse(["--nodes", "3", "--bootstrap-servers", "localhost:1"])


def test_shapes_are_chosen_by_name() -> None:
    assert parse([]).shapes == ["full"]
    assert parse(["--shape", "all"]).shapes == list(SHAPES)
    assert [str(SHAPES[name]) for name in parse(["--shape", "one-lz4,headers"]).shapes] == [
        "1 per batch, lz4",
        "full batches, 5 headers",
    ]
    for wrong in (["--shape", "two"], ["--shape", "all", "--json"]):
        with pytest.raises(SystemExit):
            parse(wrong)


async def test_no_broker_is_an_error() -> None:
    with pytest.raises(NoBrokersError):
        await run(
            "127.0.0.1:1", ["aiokafka.getmany"],
            records=1, size=1, partitions=1, rounds=1, limit=1.0, progress=Progress(disable=True),
        )  # fmt: skip


def test_they_are_listed() -> None:
    listed = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "consume" in listed.stdout
    unknown = subprocess.run([sys.executable, "-m", "benchmarks", "x"], cwd=ROOT, capture_output=True)
    assert unknown.returncode == 2


def test_cases_are_chosen_by_their_name_or_client() -> None:
    assert choose("") == [name for name, case in CASES.items() if case.default]
    assert choose("asyncgroup, aiokafka.iterate") == [
        "asyncgroup.batches",
        "asyncgroup.records",
        "aiokafka.iterate",
    ]
    assert choose(",".join(WITHOUT_THREAD)) == WITHOUT_THREAD
    assert choose("pulsar") == []
    assert {case.baseline for case in CASES.values()} <= set(CASES)


def test_a_lap_ends_with_the_share_of_its_loop() -> None:
    meter = Meter(LAP + 10, limit=60.0)
    laps = Laps(meter, LAP + 10)
    steps, left = [], laps.first
    while left:
        steps.append(left)
        left = laps.next(0)
    assert steps == [1, LAP, 9]
    assert meter.finished
    assert (meter.total, meter.counted) == (LAP + 10, LAP + 9)


def test_ratios_are_taken_within_a_round() -> None:
    def measured(case: str, index: int, rate: float) -> Measurement:
        return Measurement(
            case=case, partitions=4, round=index, records=100, bytes=1000, counted=100, seconds=100 / rate, cpu_seconds=1.0,
            start_seconds=0.0, start_cpu_seconds=0.0, committed=100,
        )  # fmt: skip

    mine, theirs = summarize(
        [
            measured("aiokafka.getmany", 1, 10.0),
            measured("asyncgroup.batches", 1, 30.0),
            measured("aiokafka.getmany", 2, 100.0),
            measured("asyncgroup.batches", 2, 200.0),
        ]
    )
    assert (mine.case, theirs.case) == ("asyncgroup.batches", "aiokafka.getmany")
    assert mine.ratio == pytest.approx((2.5, 2.0, 3.0))
    assert theirs.ratio == pytest.approx((1.0, 1.0, 1.0))
    assert mine.rate == pytest.approx((115.0, 30.0, 200.0))


def test_progress_can_be_shown() -> None:
    """The columns of the progress bar are rendered without an error."""
    from benchmarks.consume import progress_on

    out = io.StringIO()
    with progress_on(Console(file=out, force_terminal=True, width=100)) as progress:
        progress.advance(progress.add_task("round 1: asyncgroup.batches", total=2))
        progress.refresh()
    assert "round 1: asyncgroup.batches" in out.getvalue()
