"""The benchmarks `neighbours`, `memory` and `rebalance` work: every process starts, reads, is counted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from benchmarks import memory, neighbours, rebalance
from benchmarks.member import Settings as MemberSettings
from benchmarks.memory import run as memory_run
from benchmarks.neighbours import run as neighbours_run, sarama
from benchmarks.neighbours.figures import Measurement as Neighbours, summarize as summarize_neighbours
from benchmarks.neighbours.meters import PartitionMeter, Settings as NeighboursSettings, Window
from benchmarks.rebalance import run as rebalance_run
from benchmarks.rebalance.figures import Measurement as Rebalance, first_receipts, summarize, worst_gaps
from benchmarks.rebalance.scenario import LEAVER, Outcome, Receipt
from tests.profiles import current_profile, thinned

SILENT = Progress(disable=True)
SECOND = 1_000_000_000


async def leftovers(cluster: EmbeddedCluster) -> list[str]:
    async with Cluster(cluster.bootstrap_servers) as client:
        return [name for name in await client.all_topics() if name.startswith("benchmark-")]


async def check_neighbours() -> None:
    clients = ("asyncgroup", "aiokafka") if current_profile() == "full" else ("asyncgroup",)
    options = neighbours_run.parse(
        ["--quick", "--records", "5000", "--only", ",".join(clients), "--cases", "2ms"]
    )
    async with EmbeddedCluster() as cluster:
        found = await neighbours_run.run(cluster.bootstrap_servers, options, None, SILENT)
        assert await leftovers(cluster) == []
    assert [(each.client, each.case) for each in found] == [
        (client, case) for client in clients for case in ("alone", "2ms")
    ]
    assert all(each.slow_rate == 0 for each in found[::2])
    assert all(each.gap >= 0 for each in found)


async def check_memory() -> None:
    options = memory_run.parse(["--quick", "--backlog", "4", "--partitions", "4", "--only", "asyncgroup"])
    async with EmbeddedCluster() as cluster:
        found = await memory_run.run(cluster.bootstrap_servers, options, SILENT)
        assert await leftovers(cluster) == []
    idle, stuck, half = found
    assert (idle.read, idle.held) == (0, 0)
    assert stuck.read == 4, "each claim's first record"
    assert half.read > stuck.read
    assert stuck.held is not None
    assert 0 < stuck.held <= 64 << 20
    assert all(each.peak > 1 << 20 for each in found)


async def check_rebalance() -> None:
    options = rebalance_run.parse(
        ["--quick", "--partitions", "4", "--rate", "200", "--only", "asyncgroup", "--modes", "in step"]
    )
    async with EmbeddedCluster() as cluster:
        (found,), missing = await rebalance_run.run(cluster.bootstrap_servers, options, SILENT)
        assert await leftovers(cluster) == []
    assert (found.case, found.mode) == ("asyncgroup", "in step")
    assert (found.lost, found.duplicates) == (0, 0)
    assert found.sent > 100
    assert missing == {}
    assert len(found.keep) + len(found.move) == 4
    assert len(found.stay) + len(found.leave) == 4


@pytest.mark.full
@pytest.mark.parametrize("check", thinned([check_neighbours, check_memory, check_rebalance]))
async def test_every_process_starts_reads_and_is_counted(check: Callable[[], Awaitable[None]]) -> None:
    await check()


@pytest.mark.parametrize("module", [memory, neighbours, rebalance])
def test_each_has_help_and_rejects_unknown_clients(
    module: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])  # type: ignore[attr-defined]
    assert ended.value.code == 0
    assert "--quick" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        module.main(["--only", "pulsar"])  # type: ignore[attr-defined]
    assert ended.value.code == 2


def test_ratios_of_neighbours_are_to_the_same_clients_partition_alone() -> None:
    def measured(client: str, case: str, index: int, rate: float) -> Neighbours:
        figures = {"records": rate, "seconds": 1.0, "gap": 0.1 * index, "spanned": 0, "span": 0}
        return Neighbours.of(client, case, index, {"fast": figures, "slow": figures})

    alone, beside = summarize_neighbours(
        [
            measured("sarama", "alone", 1, 1000),
            measured("sarama", "alone", 2, 2000),
            measured("sarama", "20ms", 1, 10),
            measured("sarama", "20ms", 2, 40),
            measured("asyncgroup", "150ms", 2, 40),
        ]
    )[:2]
    assert alone.ratio is None
    assert (beside.ratio, beside.worst_ratio) == pytest.approx((0.015, 0.01))
    assert (beside.gap, beside.worst_gap) == pytest.approx((0.15, 0.2))


def meter_settings() -> NeighboursSettings:
    """Settings with a window of ten seconds that opens one second after the first record."""
    return NeighboursSettings(
        bootstrap_servers="", group_id="", topics=[], watched="", records=0, fetch_bytes=1,
        pause=0, every=0, warm_up=1.0, seconds=10.0,
    )  # fmt: skip


def test_a_meter_counts_within_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = meter_settings()
    times = [100.0, 100.5, 102.0, 105.0, 106.0, 111.5]
    clock = iter(times)
    monkeypatch.setattr("benchmarks.neighbours.meters.time.perf_counter", lambda: next(clock))
    meter = PartitionMeter(Window(settings))
    for _ in times:
        meter.add(10)
    figures = meter.figures(end=112.0)
    assert meter.total == 60
    assert (figures["records"], figures["seconds"]) == (30, 10.0), "from 101 to 111"
    assert figures["gap"] == 5.0, "from 106 to the window's end"
    assert (figures["spanned"], figures["span"]) == (20, 4.0)


def test_a_meter_without_records_reports_one_gap() -> None:
    window = Window(meter_settings())
    window.begin(100.0)
    assert PartitionMeter(window).figures(end=500.0) == {
        "records": 0, "seconds": 10.0, "gap": 10.0, "spanned": 0, "span": 0.0
    }  # fmt: skip


def test_gaps_reach_over_the_edges_of_their_window() -> None:
    receipts = [Receipt(0, n, at * SECOND, 0) for n, at in enumerate([1, 4, 5, 9])]
    assert worst_gaps(receipts, (2 * SECOND, 8 * SECOND)) == {0: 3.0}
    assert worst_gaps(receipts, (0, 4 * SECOND)) == {0: 3.0}
    assert worst_gaps([], (0, SECOND)) == {}


def test_gaps_of_a_rebalance_depend_on_the_partitions_owner() -> None:
    outcome = Outcome(quiet=(0, SECOND), join=(SECOND, 2 * SECOND), leave=(2 * SECOND, 5 * SECOND))
    outcome.sent = {0: 4, 1: 3}
    outcome.receipts = [
        Receipt(0, 0, 0, LEAVER),
        Receipt(1, 0, 0, 1),
        Receipt(0, 1, int(1.5 * SECOND), LEAVER),
        Receipt(1, 1, int(1.9 * SECOND), 1),
        Receipt(0, 2, 5 * SECOND, 1),
        Receipt(1, 2, 3 * SECOND, 1),
        Receipt(1, 2, 4 * SECOND, 2),
    ]
    found = Rebalance.of("aiokafka", "spread", 1, outcome)
    assert (found.sent, found.lost, found.duplicates) == (7, 1, 1)
    assert (found.stay, found.leave) == ([2.0], [3.0])
    assert [each.at for each in first_receipts(outcome.receipts)][-1] == 5 * SECOND
    assert (found.keep, found.move) == ([0.5, 0.9], [])
    (summary,) = summarize([found])
    assert (summary.leave, summary.stay, summary.lost) == (3.0, 2.0, 1)


async def test_without_go_sarama_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(sarama.SaramaUnavailable, match="not installed"):
        await sarama.build()
    (tmp_path / "go").write_text("#!/bin/sh\necho 'go: no such version' >&2\nexit 1\n", encoding="ascii")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(sarama.SaramaUnavailable, match="no such version"):
        await sarama.build()
    assert sarama.version().count(".") == 2


def test_a_partition_moves_to_the_member_that_joins() -> None:
    outcome = Outcome(quiet=(0, SECOND), join=(SECOND, 4 * SECOND), leave=(4 * SECOND, 5 * SECOND))
    outcome.receipts = [
        Receipt(0, 0, 0, 1),
        Receipt(1, 0, 0, 1),
        Receipt(0, 1, 2 * SECOND, 1),
        Receipt(1, 1, 3 * SECOND, 2),
    ]
    found = Rebalance.of("aiokafka", "spread", 1, outcome)
    assert (found.keep, found.move) == ([2.0], [2.0])


def test_the_settings_of_go_and_python_are_the_same() -> None:
    members = (rebalance_run.GO_CLIENTS["sarama"].sources / "main.go").read_text(encoding="utf-8")
    for name in MemberSettings.__dataclass_fields__.keys() - {"at_heartbeat"}:
        assert f'`json:"{name}"`' in members
    source = (sarama.SOURCES / "main.go").read_text(encoding="utf-8")
    for name in NeighboursSettings.__dataclass_fields__:
        assert f'`json:"{name}"`' in source


def test_a_worker_prints_its_figures_last() -> None:
    done = subprocess.run(
        ["python", "-m", "benchmarks.worker", "benchmarks.machine:versions", '["asyncgroup"]'],
        cwd=sarama.ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert list(json.loads(done.stdout.splitlines()[-1])) == ["asyncgroup"]
