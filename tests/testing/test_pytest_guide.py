"""Run the guide's examples of tests, unchanged, in a pytest process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guide.pages import python_blocks, snippet
from tests.shared_spark import SHARED_SPARK
from tests.testing.suites import run_suite

EXAMPLES = python_blocks("testing-kit")


def example(mentioned: str) -> str:
    """Return the example that contains this text."""
    return snippet("testing-kit", mentioned)


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
