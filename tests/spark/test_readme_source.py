"""The README's source and sink, run as they stand but for address and folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgroup.spark import register
from asyncgroup.testing import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(600)
def test_the_example_shouts(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> None:
    (block,) = re.findall(
        r'^```python\n((?:(?!^```).)*readStream\.format\("asyncgroup"\).*?)^```$',
        README.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    for topic in ("greetings", "shouted"):
        kafka_server.create_topic(topic, 2)
    register(spark)
    rows = spark.range(10).selectExpr("concat('hello ', id) as value").write.format("asyncgroup")
    rows.options(**{"kafka.bootstrap.servers": kafka_server.bootstrap_servers, "topic": "greetings"})
    rows.mode("append").save()
    block = block.replace("127.0.0.1:9092", kafka_server.bootstrap_servers)
    block = block.replace("checkpoints/", f"{tmp_path}/")
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["spark"] is spark
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    values = sorted(record.value or b"" for record in kafka_server.records("shouted"))
    assert values == [b"HELLO %d" % number for number in range(10)]
