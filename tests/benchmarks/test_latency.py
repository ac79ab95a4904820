"""The benchmark `latency` works: records are produced at a rate, read, and measured. The tests check no speed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from benchmarks import latency
from benchmarks.latency.run import CASES, Measurement, parse, run, summarize
from benchmarks.machine import Conditions


async def measure(*arguments: str) -> list[Measurement]:
    """Run the benchmark on the embedded broker; check that it removes its topics."""
    options = parse(arguments)
    async with EmbeddedCluster() as cluster:
        found = await run(cluster.bootstrap_servers, options, Progress(disable=True))
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    for each in found:
        assert each.records == each.rate * options.seconds
        assert 0 < each.p50 <= each.p99
        assert each.cpu_per_record > 0
    return found


@pytest.mark.full
async def test_a_member_of_asyncgroup_is_measured() -> None:
    (found,) = await measure(
        "--rounds", "1", "--partitions", "2", "--rates", "100", "--warm-up", "0.1", "--seconds", "0.5",
        "--only", "asyncgroup",
    )  # fmt: skip
    assert (found.case, found.partitions, found.rate, found.records) == ("asyncgroup", 2, 100, 50)


@pytest.mark.soak
async def test_every_client_is_measured() -> None:
    found = await measure("--quick")
    assert [(each.partitions, each.case) for each in found] == [
        (partitions, name) for partitions in (1, 3) for name in CASES
    ]


def measured(case: str, index: int, p50: float) -> Measurement:
    return Measurement(
        case=case, partitions=1, rate=100, round=index, records=100, p50=p50, p99=2 * p50, cpu_seconds=0.01
    )


ROUNDS = [
    measured("aiokafka", 1, 0.5),
    measured("asyncgroup", 1, 0.25),
    measured("asyncgroup", 2, 3.0),
    measured("aiokafka", 2, 1.0),
]


def test_ratios_are_taken_within_a_round() -> None:
    ours, theirs = summarize(ROUNDS)
    assert (ours.case, theirs.case) == ("asyncgroup", "aiokafka")
    assert ours.p50_ratio == pytest.approx((1.75, 0.5, 3.0))
    assert ours.p99 == pytest.approx((3.25, 0.5, 6.0))
    assert ours.cpu_per_record == pytest.approx((100.0, 100.0, 100.0))
    assert theirs.cpu_ratio == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_it_prints_a_table_or_json(
    form: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    found = Conditions(machine, {"aiokafka": "0.1"}), ROUNDS
    monkeypatch.setattr("benchmarks.latency.run.measure_cases", lambda *_: found)
    assert latency.main(form) == 0
    out = capsys.readouterr().out
    if not form:
        assert "1.75" in out
        return
    report = json.loads(out)
    assert (report["benchmark"], len(report["measurements"])) == ("latency", 4)
    assert report["summaries"][0]["p50_ratio"]["median"] == pytest.approx(1.75)
