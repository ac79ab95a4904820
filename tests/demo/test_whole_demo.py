"""The demonstration with Spark. This file sorts last: `spark_demo` runs in the background during the others' tests."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.programs import BackgroundCommand, run, started
from tests.demo.test_demo import (
    LAST_LINE,
    assert_fits_a_terminal,
    assert_times_add_up,
    assert_two_rebalances,
)

PARTITIONS = 5
"""Partitions with records: no carrier's key is assigned to one of the six."""


def assert_results_are_kept(kept: Path, result: dict[str, Any], departures: str) -> None:
    """Check for a directory per range of offsets, the pipeline's Parquet, its checkpoints and the plot."""
    assert sorted(place.name for place in kept.iterdir()) == [
        "checkpoints",
        "delay_by_hour.svg",
        "delays",
        "flights",
    ]
    assert len(list((kept / "flights").glob("topic=flights/partition=*/offsets=0-*"))) == PARTITIONS
    assert not list(kept.glob("flights/_staging/*"))
    assert list((kept / "delays").glob("*.parquet"))
    assert result["plot"] == str(kept / "delay_by_hour.svg")
    svg = ElementTree.parse(result["plot"]).getroot()
    assert departures in " ".join(each.text or "" for each in svg)


@pytest.mark.full
@pytest.mark.timeout(500)
def test_the_demo_with_spark(spark_demo: BackgroundCommand, demo_directory: Path) -> None:
    kept = demo_directory / "kept"
    ended = spark_demo.ended(limit=480)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == "20,000 of 20,000 flights, each exactly once"
    result = json.loads(ended.stdout)
    assert result["sink"] == "spark"
    assert (result["hours"], result["streaks"]) == (3_805, 12)
    assert_two_rebalances(result, 20_000)
    assert_times_add_up(ended.stderr, result["seconds"])
    paths = ("plot ", "Parquet ", "Spark ")
    assert_fits_a_terminal(
        "\n".join(line for line in ended.stderr.splitlines() if not line.startswith(paths))
    )
    assert list(demo_directory.iterdir()) == [kept], (
        "Spark must leave no other files in the working directory"
    )
    assert_results_are_kept(kept, result, "(19,822 departures)")


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(700)
def test_the_demo_of_the_whole_year(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    ended = run("demo", "--json", "--keep", str(kept), limit=680, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == LAST_LINE
    result = json.loads(ended.stdout)
    assert result["carriers"]["HA"]["mean_dep_delay"] == pytest.approx(4.9006, abs=0.0001)
    assert (result["hours"], result["streaks"]) == (60_142, 437)
    assert_two_rebalances(result)
    assert_results_are_kept(kept, result, "(328,521 departures)")


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["interrupted", "terminated"]
)
def test_stopped_while_queries_run_it_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started("demo", "--rows", "8000") as demo:
        while "query delays" not in (line := demo.line()):
            assert line, "the demonstration ended too early"
        ended, _, err = demo.end(number)
    assert (ended, err) == (code, "")
    assert list(tmp_path.glob("asyncgroup-*")) == []
