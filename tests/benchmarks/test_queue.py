"""The benchmark `queue` works: each case starts a process, is fed and counted. The tests check no speed, install nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from asyncgroup import Cluster, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.java import JavaNotFound
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window
from benchmarks import queue
from benchmarks.machine import Conditions
from benchmarks.queue import cassandra, installation, run as queue_run
from benchmarks.queue.cases import (
    CASES,
    CLIENTS,
    METADATA,
    PARALLEL_CONSUMER,
    pinned_versions,
    with_baselines,
)
from benchmarks.queue.figures import summarize
from benchmarks.queue.installation import JavaLibrary, PeerUnavailable, PythonEnvironment
from benchmarks.queue.load import Load, PoisonError, Settings
from benchmarks.queue.measure import Measurement, command_of
from benchmarks.queue.metadata import PATTERNS, Pattern, incomplete_offsets, measure_metadata, own_size
from benchmarks.queue.offset_maps import offset_map_size
from benchmarks.queue.process import start_process
from benchmarks.queue.run import Found, parse, run
from benchmarks.queue.topics import load
from benchmarks.topic import Topic
from tests.profiles import current_profile, thinned

SILENT = Progress(disable=True)
GIVEN: dict[str, Any] = {
    "bootstrap_servers": "", "group_id": "g", "topic": "t", "partitions": 2, "kind": "work", "records": 20, "keys": 9, "poison": 2,
    "work": 0.001, "work_step": 0.001, "concurrency": 5, "retry": 1.0, "retry_factor": 2.0, "retry_max": 9.0,
    "budget": 1 << 20, "limit": 10.0,
}  # fmt: skip


# --- each case, on the embedded broker ------------------------------------------------------------------------------------


async def measured(case: str, clients: str, records: int) -> dict[str, Measurement]:
    options = parse(
        ["--quick", "--cases", case, "--only", clients, "--records", str(records), "--partitions", "2"]
    )
    options.cases, options.seconds = [case], 1.0
    found = Found()
    async with EmbeddedCluster() as cluster:
        await run(cluster.bootstrap_servers, options, {}, found, SILENT)
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    assert found.missing == {}
    assert [each.case for each in found.measurements] == [case] * len(options.clients)
    return {each.client: each for each in found.measurements}


async def check_keys() -> None:
    found = await measured("keys", "asyncgroup", 150)
    assert (found["asyncgroup"].handled, found["asyncgroup"].committed) == (150, 150)
    assert 0 < found["asyncgroup"].counted <= 135, "without the warm-up"


async def check_idle() -> None:
    others = ",asyncgroup,asyncgroup.claim,aiokafka" if current_profile() == "full" else ",asyncgroup.claim"
    found = await measured("idle", f"asyncgroup.iterate{others}", 500)
    for each in found.values():
        assert each.handled == 500
        assert each.committed == 500


async def check_wide() -> None:
    found = (await measured("wide", "asyncgroup.iterate", 300))["asyncgroup.iterate"]
    assert (found.handled, found.committed) == (300, 300)


async def check_many_keys() -> None:
    found = await measured("many-keys", "asyncgroup,tasks-alone", 200)
    assert found["tasks-alone"].handled >= 200
    assert (found["asyncgroup"].handled, found["asyncgroup"].committed) == (200, 200)


async def check_poison() -> None:
    found = (await measured("poison", "asyncgroup", 100))["asyncgroup"]
    assert found.handled == 100
    assert found.poison_seen == 5
    assert found.failed >= 5
    assert found.committed < 105, "poison records are not acknowledged"


async def check_fresh() -> None:
    found = (await measured("fresh", "asyncgroup", 20))["asyncgroup"]
    assert (found.handled, found.poison_seen) == (20, 1000)
    assert found.p50 is not None
    assert found.p99 is not None
    assert 0 < found.p50 <= found.p99 < 60


async def check_blocked() -> None:
    found = (await measured("blocked", "asyncgroup", 300))["asyncgroup"]
    assert found.handled == 200, "as many handlers as there are slots"
    assert found.committed == 0
    assert found.peak > 1 << 20


CHECKS = [check_keys, check_idle, check_wide, check_many_keys, check_poison, check_fresh, check_blocked]


@pytest.mark.parametrize("check", thinned(CHECKS))
async def test_each_case_runs(check: Any) -> None:
    await check()


async def test_a_topic_has_the_records_of_its_case() -> None:
    async with EmbeddedCluster() as cluster, Cluster(cluster.bootstrap_servers) as client:
        topic = Topic(client, 2, 0, 1)
        assert await load(client, topic, CASES["poison"], 200, lambda _: None) == 210
        records = [record for number in (0, 1) for record in cluster.records(topic.name, number)]
        keys = [record.key or b"" for record in records]
        fresh = Topic(client, 2, 0, 1)
        assert await load(client, fresh, CASES["fresh"], 200, lambda _: None) == 1000
    assert len({key for key in keys if key.startswith(b"poison-")}) == 10
    assert len({key for key in keys if key.startswith(b"key-")}) == 100
    assert {len(record.value or b"") for record in records} <= set(range(98, 103))
    assert json.loads(records[0].value or b"")["n"] == 0


# --- the measured process -------------------------------------------------------------------------------------------------


async def test_the_clock_starts_after_the_warm_up_and_stops_after_the_last_record() -> None:
    meter = Load(GIVEN)
    meter.begin()
    for _ in range(2):
        meter.done()
    with pytest.raises(PoisonError):
        raise meter.fail(b"poison-1")
    for _ in range(17):
        meter.done()
    assert not meter.finished.is_set()
    meter.done()
    assert meter.finished.is_set()
    figures = meter.figures()
    assert (figures["handled"], figures["counted"], figures["failed"]) == (20, 18, 1)
    assert figures["seconds"] > 0
    assert figures["poison_seen"] == 1


async def test_a_measurement_ends_at_its_limit() -> None:
    meter = Load({**GIVEN, "limit": 0.01})
    meter.begin()
    meter.done()
    async with asyncio.timeout(5.0):
        await meter.finished.wait()
    assert meter.figures()["counted"] == 1, "the warm-up was not over"


async def test_it_says_when_all_poison_records_wait_and_when_a_handler_blocks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    meter = Load({**GIVEN, "kind": "fresh"})
    for key in (b"poison-1", b"poison-1", b"poison-2", b"poison-2"):
        meter.fail(key)
    meter.fresh(b'{"at": 0}')
    assert meter.delays[0] > 0
    blocked = asyncio.create_task(meter.block())
    await asyncio.sleep(0)
    blocked.cancel()
    assert capsys.readouterr().out.split() == ["waiting"], "a record was handled before"
    assert meter.failed == 4
    assert [round(meter.seconds(offset), 3) for offset in (0, 4, 5)] == [0.001, 0.005, 0.001]


async def test_a_process_that_fails_is_reported_with_its_output() -> None:
    async with start_process("x", ["python", "-c", "import sys; sys.exit('no such library')"]) as process:
        assert not await process.printed("ready", 30.0)
        with pytest.raises(Exception, match="no such library"):
            await process.result()


def test_the_settings_of_java_and_python_are_the_same() -> None:
    source = Path(
        installation.ROOT, "benchmarks", "peers", "parallel_consumer", "QueueBenchmark.java"
    ).read_text()
    unused = {"partitions", "budget", "keys"}
    for name in Settings.__dataclass_fields__.keys() - unused:
        assert f'"{name}"' in source, name
    settings = Settings(**GIVEN)
    command = command_of(CLIENTS["parallel-consumer"], ["java", "QueueBenchmark"], settings)
    assert command[:3] == ["java", "QueueBenchmark", "bootstrap_servers="]
    assert command_of(CLIENTS["faststream"], ["python"], settings)[:3] == [
        "python",
        "-m",
        "benchmarks.worker",
    ]


# --- metadata -------------------------------------------------------------------------------------------------------------


def test_own_metadata_is_as_long_as_a_commits() -> None:
    incomplete = [0, 1, 5, 9]
    window = encode_window(AckWindow(0, [(2, 5), (6, 9), (10, 20)]), 0, 4096).text
    whole, alone = own_size(Pattern(20, 0.2), incomplete)
    assert alone == len(window)
    tp, topic_id = TopicPartition("orders", 0), queue_metadata_id()
    assert whole == len(encode_metadata(tp, 0, CommitMetadata("", topic_id, window)))


def queue_metadata_id() -> Any:
    from benchmarks.queue import metadata

    return metadata._TOPIC_ID


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        (Pattern(5_000, 0.5), 840), (Pattern(5_000, 0.05), 404), (Pattern(5_000, 0.01), 172),
        (Pattern(24_000, 0.5), 4008), (Pattern(24_000, 0.2), 3032), (Pattern(24_000, 0.05), 1576),
        (Pattern(100_000, 0.002), 608),
    ],
)  # fmt: skip
def test_computed_sizes_are_those_of_parallel_consumers_encoder(pattern: Pattern, size: int) -> None:
    """The figures were printed by `OffsetMapSizes` with version 0.5.3.3."""
    assert offset_map_size(pattern.span, incomplete_offsets(pattern)) == pytest.approx(size, abs=8)


def test_patterns_are_the_same_in_each_run() -> None:
    for pattern in PATTERNS:
        incomplete = incomplete_offsets(pattern)
        assert incomplete == incomplete_offsets(pattern)
        assert incomplete[0] == 0
        assert incomplete[-1] < pattern.span - 1
        assert len(incomplete) / pattern.span == pytest.approx(pattern.share, rel=0.2)


async def test_without_the_jar_its_sizes_are_computed() -> None:
    (sizes,) = await measure_metadata([Pattern(5_000, 0.05)], None, None)
    assert sizes.others == {"parallel-consumer": 404, "pyrallel-consumer": None}
    assert 0 < sizes.window < sizes.own < 404


# --- clients that are not at hand -----------------------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASYNCGROUP_CACHE", str(tmp_path / "cache"))
    return tmp_path


async def test_a_python_that_is_too_old_is_the_reason(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_pythons", lambda _: iter([empty_cache / "python3.99"]))
    with pytest.raises(PeerUnavailable, match=r"does not install: it needs Python 3\.99, this is 3\."):
        await PythonEnvironment("some-package", "1.0", minimum=(3, 99)).prepare()


async def test_an_installation_that_fails_leaves_nothing_and_is_found_if_it_succeeds(
    empty_cache: Path,
) -> None:
    """A stand-in for Python: it makes environments, and pip fails if a file says so."""
    python = empty_cache / "python"
    python.write_text(
        '#!/bin/sh\ncase "$2" in\n'
        f'venv) mkdir -p "$3/bin" && cp {python} "$3/bin/python";;\n'
        f"pip) if [ -e {empty_cache}/fail ]; then echo 'ERROR: no such version' >&2; exit 1; fi;;\nesac\n"
    )
    python.chmod(0o755)
    environment = PythonEnvironment("some-package", "1.0", minimum=(3, 11))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installation.sys, "executable", str(python))
        (empty_cache / "fail").touch()
        with pytest.raises(
            PeerUnavailable, match=r"pip install some-package==1\.0 failed: ERROR: no such version"
        ):
            await environment.prepare()
        assert list((empty_cache / "cache" / "benchmarks").iterdir()) == []
        (empty_cache / "fail").unlink()
        made = await environment.prepare()
        (empty_cache / "fail").touch()
        assert await environment.prepare() == made, "from the cache"
    assert made.is_file()


async def test_without_java_there_is_neither_parallel_consumer_nor_cassandra(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: str) -> None:
        raise JavaNotFound("no Java")

    monkeypatch.setattr(installation, "require_java", none)
    monkeypatch.setattr(cassandra, "require_java", none)
    with pytest.raises(PeerUnavailable, match="no Java"):
        await PARALLEL_CONSUMER.command("QueueBenchmark")
    with pytest.raises(PeerUnavailable, match="no Java"):
        await JavaLibrary("org.example", "none", "1.0").jars()
    with pytest.raises(PeerUnavailable, match="it needs Cassandra: no Java"):
        async with cassandra.cassandra({}):
            pass
    async with cassandra.cassandra({cassandra.NODES: "db:9042"}) as address:
        assert address == "db:9042"


async def test_clients_that_are_not_at_hand_are_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unavailable(*_: object) -> None:
        raise PeerUnavailable("not here")

    started = []

    @asynccontextmanager
    async def running() -> AsyncIterator[str]:
        started.append(1)
        yield "127.0.0.1:1"

    monkeypatch.setattr(PythonEnvironment, "prepare", unavailable)
    monkeypatch.setattr(installation.JavaProgram, "command", unavailable)
    monkeypatch.setattr(queue_run, "cassandra", running)
    options, found = parse([]), Found()
    async with queue_run.AsyncExitStack() as stack:
        assert await queue_run._prepare(options, stack, SILENT, found) == {}
    assert [name for name in CLIENTS if name not in options.clients] == list(found.missing)
    assert set(found.missing.values()) == {"not here"}
    assert started == []
    assert {CLIENTS[name].distribution for name in options.clients} == {"asyncgroup", "aiokafka"}
    options = parse(["--quick"])
    await queue_run._measure_metadata(options, {}, SILENT, found)
    assert found.sizes_are_computed
    assert len(found.sizes) == 3


# --- the command ----------------------------------------------------------------------------------------------------------


def test_cases_bring_their_baselines() -> None:
    assert with_baselines(["fresh", "poison"]) == ["keys", "poison", "fresh-alone", "fresh"]
    options = parse(["--cases", "metadata"])
    assert (options.cases, options.with_metadata) == ([], True)
    assert parse([]).cases == list(CASES)
    assert CASES["keys"].bound(200) == 20_000
    assert CASES["many-keys"].bound(200) == pytest.approx(200 / 0.003)
    assert CASES["idle"].bound(200) is None
    assert CASES["poison"].poison_records(20_000) == 1000
    assert [CASES[name].poison_records(500) for name in ("fresh", "fresh-alone")] == [1000, 1]


def one(client: str, case: str, index: int, rate: float, **others: Any) -> Measurement:
    values = {
        "records": 100, "handled": 100, "counted": 90, "seconds": 90 / rate, "cpu_seconds": 0.009, "committed": 100,
        "failed": 0, "poison_seen": 0, "p50": None, "p99": None, "peak": 3 << 20,
    }  # fmt: skip
    return Measurement(client=client, case=case, round=index, **(values | others))


ROUNDS = [
    one("tasks-alone", "keys", 1, 20_000),
    one("asyncgroup", "keys", 1, 10_000), one("asyncgroup", "keys", 2, 20_000),
    one("asyncgroup", "poison", 1, 9_500, failed=7), one("asyncgroup", "poison", 2, 18_000, failed=7),
    one("asyncgroup.iterate", "idle", 1, 50_000), one("asyncgroup.claim", "idle", 1, 200_000),
    one("asyncgroup", "fresh", 1, 1, p50=0.002, p99=0.009), one("aiokafka", "blocked", 1, 1),
    one("aiokafka", "blocked-idle", 1, 1, peak=1 << 20),
]  # fmt: skip


def test_figures_are_compared_within_a_round() -> None:
    found = {(each.client, each.case): each for each in summarize(ROUNDS, 200)}
    keys, poison = found["asyncgroup", "keys"], found["asyncgroup", "poison"]
    assert (keys.rate, keys.bound, keys.share) == (15_000, 20_000, 0.75)
    assert keys.ratio == 0.5, "in the only round with both"
    assert keys.cpu == pytest.approx(100)
    assert poison.cost == pytest.approx(0.075)
    assert (poison.failed, keys.cost) == (7, None)
    assert found["asyncgroup.iterate", "idle"].ratio == pytest.approx(0.25)
    assert found["asyncgroup", "fresh"].p99 == 0.009
    assert found["aiokafka", "blocked"].over == 2 << 20
    assert found["aiokafka", "blocked-idle"].over is None


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_it_prints_tables_or_json(
    form: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(_: object, console: object, found: Found) -> None:
        found.measurements = ROUNDS
        found.sizes = await measure_metadata(PATTERNS[:1], None, None)
        found.sizes_are_computed = True
        found.missing = {"prosody-events": "it needs Cassandra"}

    machine = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    monkeypatch.setattr(queue_run, "machine", lambda: machine)
    monkeypatch.setattr(queue_run, "_run_all", measure)
    assert queue.main(form) == 0
    out = capsys.readouterr().out
    if not form:
        assert "bound 20,000/s, goal of asyncgroup: 0.9 of the bound" in out
        assert "prosody-events: not measured, it needs Cassandra" in out
        assert "parallel-consumer's computed from its format" in out
        assert "7.5%" in out
        return
    report = json.loads(out)
    assert Conditions(machine, {}).machine == report["machine"]
    assert report["missing"] == {"prosody-events": "it needs Cassandra"}
    assert report["summaries"][0]["share"] == 0.75
    assert report["metadata"][0]["span"] == 5_000
    assert report["metadata_computed"]


def test_versions_of_other_environments_are_reported() -> None:
    assert pinned_versions(["asyncgroup", "aiokafka"]) == {}
    found = pinned_versions(list(CLIENTS))
    assert list(found) == [
        "faststream",
        "pyrallel-consumer",
        "prosody-events",
        "Cassandra",
        "parallel-consumer",
    ]
    assert METADATA not in CASES
