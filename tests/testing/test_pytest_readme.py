"""Run the README's examples of tests, unchanged, in a pytest process of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.shared_spark import SHARED_SPARK
from tests.testing.suites import ROOT, run_suite

SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("## An embedded broker for your tests")[1]
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", SECTION.split("\n## ")[0], re.MULTILINE | re.DOTALL)


def example(mentioned: str) -> str:
    """Return the example that contains this text."""
    (found,) = [each for each in EXAMPLES if mentioned in each]
    return found


def test_the_readme_has_examples_for_each_fixture() -> None:
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
