"""Run the guide's examples of tests, unchanged, in a pytest process of their own."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing.kit.marker_options import MarkerOptions
from tests.guide.pages import page, python_blocks, snippet
from tests.shared_spark import SHARED_SPARK
from tests.testing.suites import run_suite

EXAMPLES = python_blocks("testing-kit")


def example(mentioned: str) -> str:
    """Return the example that contains this text."""
    return snippet("testing-kit", mentioned)


def marker_examples() -> list[dict[str, Any]]:
    """Return the arguments of the marker's table, each with the nodes and the topic that it needs.

    The topics are also those of the docstring of `EmbeddedCluster`.
    """
    table = re.search(r"^\| `@pytest\.mark\.kafka\(…\)` .*\n((?:\|.*\n)+)", page("testing-kit"), re.MULTILINE)
    assert table is not None
    found: list[dict[str, Any]] = []
    for row in table[1].splitlines()[1:]:
        names, text = re.findall(r"`(\w+)`", row.split("|")[1]), row.split("|")[2]
        for code in re.findall(r"`([^`]+)`", text):
            if matched := re.fullmatch(r"(\w+)=(.+)", code):
                found.append({matched[1]: ast.literal_eval(matched[2])})
            elif code[0] in '"[{':
                found.append({names[0]: ast.literal_eval(code.replace(", …]", "]"))})
                if names == ["topics"]:
                    assert code in (EmbeddedCluster.__doc__ or "")
                elif names == ["faults"]:
                    found[-1]["faults"][0]["optional"] = True  # no client sends a request
    return [{"nodes": 2, "topics": "orders", **example} for example in found]


@pytest.mark.virtual
async def test_the_examples_of_the_markers_table() -> None:
    """Each makes a cluster, with its topics, records and faults."""
    examples = marker_examples()
    assert len(examples) >= 8
    with_records = 0
    for example in examples:
        options = MarkerOptions.parse(example)
        async with EmbeddedCluster(options.cluster) as cluster:
            options.apply_faults(cluster)
            with_records += bool(cluster.records("orders"))
    assert with_records == 1


def test_the_guide_has_examples_for_each_fixture() -> None:
    assert len(EXAMPLES) == 5  # one of them shows `kafka_session_options`
    for fixture in ("kafka_cluster", "virtual_kafka", "kafka_server"):
        assert any(f"({fixture}" in each for each in EXAMPLES)


def test_the_examples_without_spark(tmp_path: Path) -> None:
    tests = "\n".join(
        example(library) for library in ("from aiokafka", "from confluent_kafka", "virtual_kafka")
    )
    done = run_suite(tmp_path, tests)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_first_test_of_a_newcomer(tmp_path: Path) -> None:
    done = run_suite(tmp_path, snippet("getting-started", "import pytest"))
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_options_of_a_sessions_cluster(tmp_path: Path) -> None:
    conftest = example("kafka_session_options")
    tests = "def test_it(session_kafka_server):\n    assert session_kafka_server.bootstrap_servers.count(',') == 2\n"
    done = run_suite(tmp_path, tests, conftest=conftest)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
@pytest.mark.usefixtures("spark_with_kafka")
def test_the_example_with_spark(
    tmp_path: Path, spark_gateway: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in spark_gateway.items():
        monkeypatch.setenv(name, value)
    # pyspark raises warnings
    done = run_suite(tmp_path, example("spark.read"), conftest=SHARED_SPARK, warnings="default")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
