"""The benchmark `pulsar` works: each client runs each of its cases. The tests check no rate."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from rich.progress import Progress

from benchmarks import pulsar
from benchmarks.machine import Conditions
from benchmarks.pulsar.cases import ASYNCIO, CASES, CLIENTS, GOALS, OWN, RATES, SYNC
from benchmarks.pulsar.figures import Measurement, goals_of, summarize
from benchmarks.pulsar.load import Load
from benchmarks.pulsar.run import parse, run
from tests.apache_pulsar import RunningPulsar
from tests.interop.go_clients import build_go_clients


async def measured(server: RunningPulsar, *arguments: str) -> dict[tuple[str, str], Measurement]:
    """Run the benchmark on the shared Pulsar."""
    missing: dict[str, str] = {}
    options = parse(["--quick", *arguments])
    found = await run(server.service_url, server.admin, options, Progress(disable=True), missing)
    assert not missing
    return {(each.client, each.case): each for each in found}


@pytest.mark.real
@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
async def test_every_client_runs_every_case(apache_pulsar: RunningPulsar, case: str) -> None:
    names = [name for name in CLIENTS if name != "go"]
    found = await measured(apache_pulsar, "--cases", case, "--only", ",".join(names))
    assert list(found) == [(name, case) for name in names if case in CLIENTS[name].cases]
    for (client, _), each in found.items():
        if case in RATES:
            assert each.counted in (999, 1000)
            assert each.rate is not None
        if case == "latency":
            assert each.p50 is not None
            assert each.p99 is not None
            assert 0 < each.p50 <= each.p99
        if case == "memory":
            assert each.memory is not None
            assert 1 << 20 < each.memory < 100 << 20, (
                client
            )  # 50 messages of 100 kB, some in memory that was free
        if client.startswith(OWN):
            assert not each.backlog


@pytest.mark.real
@pytest.mark.soak
async def test_go_runs_its_cases(apache_pulsar: RunningPulsar) -> None:
    build_go_clients()  # skips the test without Go
    found = await measured(apache_pulsar, "--only", "go")
    assert list(found) == [("go", case) for case in CLIENTS["go"].cases]
    assert all(each.rate is not None for each in found.values())


@pytest.mark.real
@pytest.mark.full
async def test_topics_with_partitions(apache_pulsar: RunningPulsar) -> None:
    found = await measured(apache_pulsar, "--partitions", "3", "--only", OWN)
    assert list(found) == [(OWN, case) for case in CASES]
    assert [case for (_, case), each in found.items() if each.backlog] == []


def test_messages_have_the_size_and_the_keys_of_the_case() -> None:
    given = {"service_url": "", "topic": "", "subscription": "", "messages": 20_000, "calls": 1}
    load = Load({**given, "case": "produce-keys", "size": 300})
    keys = list(load.all_keys())
    assert (len(load.value), len(keys), len(set(keys))) == (300, 20_000, 5_000)
    assert set(Load({**given, "case": "produce", "size": 100}).all_keys()) == {None}


def one(client: str, case: str, index: int, seconds: float, **others: float) -> Measurement:
    values = {"cpu_seconds": seconds / 2, "p50": None, "p99": None, "memory": None, "backlog": None} | others
    return Measurement(client=client, case=case, round=index, counted=1000, seconds=seconds, **values)  # type: ignore[arg-type]


ROUNDS = [
    one(OWN, "produce", 1, 1.0), one(ASYNCIO, "produce", 1, 3.0),
    one(OWN, "produce", 2, 1.0), one(ASYNCIO, "produce", 2, 5.0),
    one(OWN, "receive", 1, 2.0), one(SYNC, "receive", 1, 0.5),
    one(OWN, "queue", 1, 8.0, backlog=3),
    one(OWN, "latency", 1, 1.0, p50=0.001, p99=0.004), one(ASYNCIO, "latency", 1, 1.0, p50=0.002, p99=0.002),
    one(OWN, "memory", 1, 0.0, memory=64 << 20),
]  # fmt: skip


def test_ratios_are_taken_within_a_round() -> None:
    found = {(each.client, each.case): each for each in summarize(ROUNDS)}
    assert found[OWN, "produce"].to_asyncio["rate"] == pytest.approx((4.0, 3.0, 5.0))
    assert found[OWN, "produce"].figures["cpu"].median == pytest.approx(500)
    assert found[OWN, "receive"].to_sync["per_core"].median == pytest.approx(0.25)
    assert found[OWN, "queue"].to_asyncio["rate"].median == pytest.approx(0.25), "to its own consumer"
    assert found[OWN, "queue"].backlog == 3
    assert "rate" not in found[OWN, "memory"].figures
    met = {(goal.case, goal.figure): goal.is_met(ratio.median) for goal, ratio in goals_of([*found.values()])}
    assert met == {
        ("produce", "rate"): True,
        ("receive", "per_core"): False,
        ("latency", "p50"): True,
        ("latency", "p99"): False,
    }


def test_goals_are_of_cases_that_the_clients_have() -> None:
    for goal in GOALS:
        assert goal.case in CLIENTS[OWN].cases
        assert goal.case in CLIENTS[goal.other].cases


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_it_prints_tables_or_json(
    form: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = dict.fromkeys(("python", "system", "processor", "cores", "load"), "x")
    found = Conditions(machine, {"pulsar-client": "3.13"}, {"java": "no Java"}), ROUNDS
    monkeypatch.setattr("benchmarks.pulsar.run._measure_all", lambda _: found)
    assert pulsar.main(form) == 0
    out = capsys.readouterr().out
    if not form:
        assert "java: not measured, no Java" in out
        assert "Not all messages were acknowledged: asyncgroup, queue." in out
        assert "messages per CPU second >= 0.5 of pulsar.sync" in out
        return
    report = json.loads(out)
    assert (report["benchmark"], report["settings"]["size"]) == ("pulsar", 100)
    assert [goal["met"] for goal in report["goals"]] == [True, False, True, False]


def test_one_address_of_a_running_pulsar_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--service-url", "pulsar://localhost:6650"])
    assert "give both or none" in capsys.readouterr().err
