"""The main job, as a user runs it. Its file comes last: `spark_demo` runs beside the tests of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.programs import Running
from tests.cli.test_demo import LAST_LINE, assert_two_rebalances


@pytest.mark.timeout(400)
def test_the_demo_with_spark(spark_demo: Running, demo_directory: Path) -> None:
    kept = demo_directory / "kept"
    ended = spark_demo.ended(limit=380)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == LAST_LINE
    result = json.loads(ended.stdout)
    assert result["sink"] == "spark"
    assert result["carriers"]["HA"]["mean_dep_delay"] == pytest.approx(4.9006, abs=0.0001)
    assert_two_rebalances(result)
    # a directory for each range of offsets, and nothing else of Spark's in the directory where it ran
    assert list(demo_directory.iterdir()) == [kept]
    starts = [
        int(place.name.removeprefix("start=")) for place in kept.glob("topic=flights/partition=*/start=*")
    ]
    assert starts.count(0) == 5, "partitions with records: one of the six gets no carrier"
    assert not list(kept.glob(".spark-staging*"))
