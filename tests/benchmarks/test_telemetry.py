"""The benchmark `telemetry` works: each case is measured beside a run without hooks. The tests check no cost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from benchmarks import telemetry
from benchmarks.machine import Conditions
from benchmarks.telemetry.clients import HOOKS
from benchmarks.telemetry.run import CASES, MODES, Pair, parse, run, summarize


async def measure(*arguments: str) -> list[Pair]:
    """Run the benchmark on the embedded broker; check that it removes its topic."""
    options = parse(arguments)
    async with EmbeddedCluster() as cluster:
        found = await run(cluster.bootstrap_servers, options, Progress(disable=True))
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    assert [(each.mode, each.case) for each in found] == [
        (mode, name) for mode in options.modes for name in options.cases
    ]
    assert all(each.cpu_per_million > 0 and each.without > 0 for each in found)
    return found


@pytest.mark.full
async def test_every_case_is_measured() -> None:
    found = await measure("--quick")
    assert {each.case for each in found} == set(CASES) == HOOKS.keys() - {"nothing"}
    assert {each.mode for each in found} == set(MODES)


def measured(case: str, index: int, cpu: float, without: float) -> Pair:
    return Pair(case=case, mode="records", round=index, cpu_per_million=cpu, without=without)


PAIRS = [
    measured("prometheus", 1, 1.1, 1.0),
    measured("prometheus", 2, 2.0, 2.0),
    measured("prometheus", 3, 3.6, 3.0),
    measured("otel.traces", 1, 10.0, 1.0),
]


def test_ratios_are_taken_within_a_pair() -> None:
    metrics, traces = summarize(PAIRS)
    assert (metrics.case, metrics.mode, traces.case) == ("prometheus", "records", "otel.traces")
    assert metrics.ratio == pytest.approx((1.1, 1.0, 1.2))
    assert metrics.cpu_per_million.median == 2.0
    assert traces.ratio.median == 10.0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_it_prints_a_table_or_json(
    form: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    found = Conditions(machine, {"opentelemetry-sdk": "1.45"}), PAIRS
    monkeypatch.setattr("benchmarks.telemetry.run.measure_cases", lambda *_: found)
    assert telemetry.main(form) == 0
    out = capsys.readouterr().out
    if not form:
        assert "1.100" in out
        assert "OpenTelemetry traces" in out
        return
    report = json.loads(out)
    assert (report["benchmark"], report["settings"]["rounds"]) == ("telemetry", 10)
    assert len(report["pairs"]) == 4
    assert report["summaries"][0]["ratio"] == pytest.approx({"median": 1.1, "low": 1.0, "high": 1.2})
