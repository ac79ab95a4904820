"""The benchmark `idle` works: members start, are assigned, counted and removed. The tests check no cost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from benchmarks import idle
from benchmarks.figures import Spread
from benchmarks.idle.run import CASES, Measurement, parse, run, summarize
from benchmarks.machine import Conditions


async def measure(*arguments: str) -> list[Measurement]:
    """Run the benchmark on the embedded broker; check that it removes its topic."""
    options = parse(arguments)
    async with EmbeddedCluster() as cluster:
        found = await run(cluster.bootstrap_servers, options, Progress(disable=True))
        async with Cluster(cluster.bootstrap_servers) as client:
            assert [name for name in await client.all_topics() if name.startswith("benchmark-")] == []
    assert [(each.members, each.case) for each in found] == [
        (members, name) for members in options.members for name in options.cases
    ]
    for each in found:
        assert each.seconds >= options.seconds
        assert each.cpu_seconds > 0
        assert each.threads >= 1
    return found


async def test_a_member_of_asyncgroup_is_measured() -> None:
    (found,) = await measure(
        "--rounds", "1", "--members", "1", "--settle", "0", "--seconds", "0.1", "--only", "asyncgroup"
    )  # fmt: skip
    assert found.wake_ups > 0


@pytest.mark.soak
async def test_every_client_is_measured() -> None:
    found = await measure("--quick", "--partitions", "2")
    assert {each.case for each in found} == set(CASES)
    assert all(each.wake_ups > 0 for each in found)


def measured(case: str, members: int, index: int, cpu_seconds: float) -> Measurement:
    return Measurement(
        case=case, members=members, round=index, seconds=10.0, cpu_seconds=cpu_seconds, wake_ups=50 * index, threads=3
    )  # fmt: skip


ROUNDS = [measured("aiokafka", 1, 1, 0.1), measured("aiokafka", 20, 1, 1.0), measured("aiokafka", 1, 2, 0.3)]


def test_costs_are_medians_for_each_number_of_members() -> None:
    one, twenty = summarize(ROUNDS)
    assert (one.case, one.members, twenty.members) == ("aiokafka", 1, 20)
    assert one.cpu_per_hour == pytest.approx((72.0, 36.0, 108.0))
    assert one.wake_up_rate == Spread(7.5, 5.0, 10.0)
    assert twenty.threads == Spread(3, 3, 3)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_it_prints_a_table_or_json(
    form: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    found = Conditions(machine, {"aiokafka": "0.1"}), ROUNDS
    monkeypatch.setattr("benchmarks.idle.run.measure_cases", lambda *_: found)
    assert idle.main(form) == 0
    out = capsys.readouterr().out
    if not form:
        assert "72.0" in out
        return
    report = json.loads(out)
    assert (report["benchmark"], report["settings"]["members"]) == ("idle", [1, 20])
    assert len(report["measurements"]) == 3
    assert report["summaries"][0]["cpu_per_hour"] == pytest.approx(
        {"median": 72.0, "low": 36.0, "high": 108.0}
    )
