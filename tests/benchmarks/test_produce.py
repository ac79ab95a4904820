"""The benchmark `produce` works: every record is written and counted in the log. The tests check no speed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError
from benchmarks import produce
from benchmarks.figures import Spread
from benchmarks.machine import Conditions
from benchmarks.produce import asyncgroup_client, bare_connection, cases
from benchmarks.produce.cases import (
    CLIENTS,
    CODECS,
    MODES,
    SIZES,
    SPREAD_MODES,
    SPREAD_PARTITIONS,
    TOPICS,
    Workload,
)
from benchmarks.produce.figures import Measurement, StoppedMeasurement, summarize
from benchmarks.produce.load import STEP, Settings
from benchmarks.produce.run import Found, parse, run
from benchmarks.produce.stopped import Broker
from benchmarks.produce.values import COUNT, write_values

BULK = Workload("bulk", 100, "none", headers=False)
SPREAD = [("keyed", 20), ("round-robin", 20), ("topics", 1)]


def settings(
    cluster: EmbeddedCluster, directory: Path, mode: str, topics: Sequence[str] = ()
) -> dict[str, Any]:
    return asdict(
        Settings(
            bootstrap_servers=cluster.bootstrap_servers, topic="t", mode=mode, size=100, codec="none", headers=True,
            values=str(write_values(directory, 100)), seconds=0.02, callers=7, batch_bytes=10_000, linger=0.001,
            buffer_bytes=1 << 20, partitions=2, topics=topics,
        )
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
async def test_a_producer_writes_what_it_counts(mode: str, tmp_path: Path) -> None:
    async with EmbeddedCluster() as cluster:
        names = ["t", "u"] if mode == "topics" else ["t"]
        for name in names:
            cluster.create_topic(name, 2)
        figures = await asyncgroup_client.run(
            settings(cluster, tmp_path, mode, names if len(names) > 1 else ())
        )
        parts = [cluster.records(name, partition) for name in names for partition in (0, 1)]
        records = [record for part in parts for record in part]
    assert len(records) == figures["records"] > 1
    assert {len(record.value or b"") for record in records} == {100}
    assert all(len(record.headers) == 3 for record in records)
    if mode == "bulk" or mode in SPREAD_MODES:
        assert mode == "bulk" or 1 <= figures["batches"] < figures["records"]
        assert (len({record.key for record in records}) > 100) == (mode == "keyed")
        assert (figures["records"] - len(names)) % STEP == 0
    if mode in ("partition", "round-robin"):
        assert abs(len(parts[0]) - len(parts[1])) <= 1
    elif mode == "topics":
        assert len(parts[0] + parts[1]) == len(parts[2] + parts[3])
    if mode in ("bulk", *SPREAD_MODES):
        assert "p50" not in figures
    else:
        assert 0 < figures["p50"] <= figures["p99"]


async def test_a_bare_connection_writes_what_it_counts(tmp_path: Path) -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", 2)
        figures = await bare_connection.run(settings(cluster, tmp_path, "loop"))
        records = cluster.records("t", 0)
        with pytest.raises(BrokerError, match="a record of the bare connection"):
            await bare_connection.run(settings(cluster, tmp_path, "loop") | {"topic": "missing"})
    assert len(records) == figures["records"] > 2
    assert {record.value for record in records} == {records[0].value}


async def test_a_bare_connection_that_is_closed_ends(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with EmbeddedCluster() as cluster, server:
        given = settings(cluster, tmp_path, "loop")
        host, port = server.sockets[0].getsockname()
        async with asyncio.timeout(10.0):
            with pytest.raises(ConnectionError):
                await bare_connection.run(given | {"bootstrap_servers": f"{host}:{port}"})


@pytest.mark.soak
async def test_every_client_writes_all_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client also runs the case of a stopped broker, here with a broker that goes on."""
    options = parse(["--quick", "--only", "asyncgroup,aiokafka,aiokafka.batches,confluent,kafka-python"])
    monkeypatch.setattr(cases, "TOPICS", 3)
    options.workloads = [BULK, *(Workload(mode, 100, "none", False, number) for mode, number in SPREAD), Workload("concurrent", 1024, "zstd", headers=False), Workload("loop", 100, "none", True)]  # fmt: skip
    options.seconds, options.stopped_seconds = 0.05, 0.1
    async with EmbeddedCluster() as cluster:
        broker = Broker(cluster.bootstrap_servers)
        found = await run(broker, options, None, Progress(disable=True))
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    assert found.missing == {}
    names = [name for name in options.clients if name != "aiokafka.batches"]
    assert [(each.workload.mode, each.client) for each in found.measurements] == [
        *(("bulk", name) for name in options.clients),
        *(
            (mode, name)
            for mode, _ in SPREAD
            for name in ("asyncgroup", "aiokafka", "confluent")
            if (mode, name) != ("round-robin", "confluent")
        ),
        *(("concurrent", name) for name in names),
        *(("loop", name) for name in names),
    ]
    assert [each.client for each in found.stopped] == names
    assert all(each.peak >= each.before > 0 for each in found.stopped)


def test_values_are_the_same_in_each_run_and_can_be_compressed(tmp_path: Path) -> None:
    import zlib

    first = write_values(tmp_path, 100).read_bytes()
    assert first == write_values(tmp_path, 100).read_bytes()
    assert len(first) == 100 * COUNT
    assert 2 < len(first) / len(zlib.compress(first)) < 5


def test_workloads_and_clients_are_chosen() -> None:
    everything = (len(MODES) - 3 + 3 * len(SPREAD_PARTITIONS)) * len(SIZES) * len(CODECS) * 2
    assert len(parse(["--all"]).workloads) == everything
    assert 3 < len(parse([]).workloads) < everything / 2
    options = parse(["--modes", "bulk,stopped", "--sizes", "100", "--codecs", "none", "--headers", "no"])
    assert (options.workloads, options.with_stopped) == ([BULK], True)
    options = parse(["--modes", "loop,keyed,topics", "--partitions", "4,100,500,1000"])
    assert [each.partitions for each in options.workloads] == 2 * [4, 100, 500, 1000] + [1]
    assert options.workloads[-1].title == f"topics, {TOPICS:,} topics, 100 B, none"
    assert {each.mode for each in parse([]).workloads} == {"loop", "concurrent", "bulk", "keyed"}
    assert (parse([]).waiting_linger, parse(["--waiting-linger", "0.1"]).waiting_linger) == (None, 0.1)
    assert not parse(["--bootstrap-servers", "localhost:1"]).with_stopped
    assert not CLIENTS["confluent.aio"].can_write(Workload("bulk", 100, "none", headers=True))


def measured(client: str, index: int, records: int, p99: float | None = None) -> Measurement:
    return Measurement(
        client=client, workload=BULK, round=index, records=records + 1, seconds=2.0, cpu_seconds=1.0, p99=p99
    )


ROUNDS = [
    measured("asyncgroup", 1, 4_000_000), measured("aiokafka", 1, 1_000_000),
    measured("asyncgroup", 2, 2_000_000), measured("aiokafka", 2, 1_000_000),
]  # fmt: skip


def test_ratios_are_to_aiokafka_in_the_same_round() -> None:
    own, base = summarize(ROUNDS)
    assert (own.client, own.rate, own.ratio) == ("asyncgroup", Spread(1.5e6, 1e6, 2e6), Spread(3, 2, 4))
    assert (own.cpu, own.cpu_ratio) == (Spread(0.375, 0.25, 0.5), Spread(0.375, 0.25, 0.5))
    assert (base.ratio, own.p50) == (Spread(1, 1, 1), None)
    alone = summarize([measured("confluent", 1, 1, p99=0.5), measured("confluent", 2, 1, p99=0.7)])[0]
    assert (alone.ratio, alone.p99, alone.per_batch) == (None, 0.6, None)


def test_records_of_a_batch() -> None:
    keyed = Workload("keyed", 100, "none", headers=False, partitions=1000)
    counted = [
        Measurement(
            client="asyncgroup",
            workload=keyed,
            round=1,
            records=1001,
            seconds=1.0,
            cpu_seconds=1.0,
            batches=batches,
        )
        for batches in (100, 250)
    ]
    assert [each.per_batch for each in counted] == [10.0, 4.0]
    assert summarize(counted)[0].per_batch == 4.0
    assert keyed.title == "keyed, 1,000 partitions, 100 B, none"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_it_prints_a_table_or_json(
    form: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Found()
    found.measurements = ROUNDS
    found.stopped = [StoppedMeasurement(client="asyncgroup", before=1 << 20, peak=3 << 20, records=1024)]
    found.missing = {"sarama": "Go is not installed"}
    machine = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    monkeypatch.setattr("benchmarks.produce.run.machine", lambda: machine)
    monkeypatch.setattr("benchmarks.produce.run.installed", lambda *_: ({"aiokafka": "0.1"}, []))
    monkeypatch.setattr("benchmarks.produce.run.run_to_end", lambda work, _: work.close() or found)
    assert produce.main(form) == 0
    out = capsys.readouterr().out
    if not form:
        assert "1,500,000" in out
        assert "sarama: not measured, Go is not installed" in out
        return
    report = json.loads(out)
    assert Conditions(machine, {}).machine == report["machine"]
    assert report["summaries"][0]["workload"] == "bulk, 100 B, none"
    assert report["stopped"] == [
        {"client": "asyncgroup", "before": 1 << 20, "peak": 3 << 20, "records": 1024}
    ]
