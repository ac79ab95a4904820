"""Download the jars of Spark's own Kafka source and sink, for comparisons with ours.

pyspark ships Apache Ivy, but not these four jars (10 MB). They are downloaded once per user, without their dependencies:
some of those are not available, and pyspark contains all that are needed. The environment variables of
`asyncgroup.testing.apache.jars` apply here, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from asyncgroup.java import require_java, user_cache
from asyncgroup.testing.apache.jars import KafkaJarsUnavailable, _ivy_command, _ivy_jar, _locked

__all__ = ["SPARK_KAFKA_VERSION", "spark_kafka_jars"]

SPARK_KAFKA_VERSION: Final = "4.2.0"
"""The newest release of the source in the public repository; it runs on Spark 4.2 and 4.3."""

JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_KAFKA_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


def spark_kafka_jars(*, limit: float = 100.0) -> list[Path]:
    """Return the jars, for the setting `spark.jars`, and download them first if needed.

    `limit` in seconds applies to the download, and to the wait for another process that downloads. Raises
    KafkaJarsUnavailable and JavaNotFound.
    """
    target = user_cache() / "spark-kafka" / SPARK_KAFKA_VERSION
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{SPARK_KAFKA_VERSION}.lock"), limit):
        if _missing_jars(target):
            _fetch(target, limit)
    return _jars(target)


def _jars(target: Path) -> list[Path]:
    return [target / f"{name}-{revision}.jar" for _, name, revision in JARS]


def _missing_jars(target: Path) -> list[str]:
    return [jar.name for jar in _jars(target) if not jar.is_file()]


def _fetch(target: Path, limit: float) -> None:
    java, ivy = require_java("fetch Spark's Kafka source"), _ivy_jar()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{SPARK_KAFKA_VERSION}-") as name:
        scratch = Path(name)
        command = _ivy_command(java, ivy, scratch, SPARK_KAFKA_VERSION, os.environ)
        (scratch / "ivy.xml").write_text(_ivy_file())
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise KafkaJarsUnavailable(
                f"downloading Spark's Kafka source took longer than {limit:g} s"
            ) from None
        if done.returncode:
            raise KafkaJarsUnavailable(f"downloading Spark's Kafka source failed: {done.stdout[-500:]}")
        if names := _missing_jars(scratch / "lib"):
            raise KafkaJarsUnavailable(
                f"downloading Spark's Kafka source: Ivy did not fetch {', '.join(names)}"
            )
        shutil.rmtree(target, ignore_errors=True)
        (scratch / "lib").rename(target)


def _ivy_file() -> str:
    wanted = "".join(
        f'<dependency org="{org}" name="{jar}" rev="{revision}" conf="default->master" transitive="false"/>'
        for org, jar, revision in JARS
    )
    module = '<info organisation="asyncgroup" module="spark-kafka"/>'
    return f'<ivy-module version="2.0">{module}<dependencies>{wanted}</dependencies></ivy-module>'
