"""The README's examples of tests, each run as it stands there by a pytest of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from asyncgroup.java import JavaNotFound
from asyncgroup.testing.kafka_jars import KafkaJarsUnavailable
from tests.interop.spark_jars import spark_kafka_jars
from tests.testing.suites import ROOT, run_suite

SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("## An embedded broker for your tests")[1]
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", SECTION.split("\n## ")[0], re.MULTILINE | re.DOTALL)

SPARK = """
import pytest

@pytest.fixture(scope="session")
def spark():
    from asyncgroup.spark import local_session
    settings = {{"spark.jars": {jars!r}, "spark.sql.shuffle.partitions": "1"}}
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short life
    session = local_session("tests", config=settings)
    yield session
    session.stop()
"""
"""The fixture that the README leaves to its reader."""


def example(mentioned: str) -> str:
    """The example that mentions this."""
    (found,) = [each for each in EXAMPLES if mentioned in each]
    return found


def test_there_are_examples_for_each_fixture() -> None:
    assert len(EXAMPLES) == 4
    for fixture in ("kafka_cluster", "virtual_kafka", "kafka_server"):
        assert any(f"({fixture}" in each for each in EXAMPLES)


def test_the_examples_without_spark(tmp_path: Path) -> None:
    tests = "\n".join(
        example(library) for library in ("from aiokafka", "from confluent_kafka", "virtual_kafka")
    )
    done = run_suite(tmp_path, tests)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_example_with_spark(tmp_path: Path) -> None:
    try:
        jars = ",".join(map(str, spark_kafka_jars()))
    except (JavaNotFound, KafkaJarsUnavailable) as error:
        if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"no Spark with Kafka: {error}")
    conftest = SPARK.format(jars=jars)
    done = run_suite(
        tmp_path, example("spark.read"), conftest=conftest, warnings="default"
    )  # pyspark has its own
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
