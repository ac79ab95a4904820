"""The jars of Spark's Kafka source and sink, fetched once into the user's cache through the Ivy that pyspark brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from asyncgroup.java import require_java, user_cache
from asyncgroup.testing.kafka_jars import KafkaJarsUnavailable, _ivy_command, _ivy_jar, _locked

__all__ = ["spark_kafka_jars"]

JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""What pyspark lacks; without their dependencies, some of which cannot be had."""

LIMIT: Final = 100.0
"""Seconds for the fetch, and for the wait for another process that fetches."""


def spark_kafka_jars() -> list[Path]:
    """The jars; raises KafkaJarsUnavailable or JavaNotFound where they cannot be had."""
    version = JARS[0][2]
    target = user_cache() / "spark-kafka" / version
    found = [target / f"{name}-{revision}.jar" for _, name, revision in JARS]
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{version}.lock"), LIMIT):
        if not all(jar.is_file() for jar in found):
            _fetch(version, target)
    return found


def _fetch(version: str, target: Path) -> None:
    java, ivy = require_java("fetch Spark's Kafka source"), _ivy_jar()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version}-") as name:
        scratch = Path(name)
        command = _ivy_command(java, ivy, scratch, version, os.environ)
        wanted = "".join(
            f'<dependency org="{org}" name="{jar}" rev="{revision}" conf="default->master" transitive="false"/>'
            for org, jar, revision in JARS
        )
        module = '<info organisation="asyncgroup" module="spark-kafka"/>'
        text = f'<ivy-module version="2.0">{module}<dependencies>{wanted}</dependencies></ivy-module>'
        (scratch / "ivy.xml").write_text(text)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            raise KafkaJarsUnavailable(
                f"fetching Spark's Kafka source took longer than {LIMIT:g} s"
            ) from None
        if done.returncode:
            raise KafkaJarsUnavailable(f"fetching Spark's Kafka source failed: {done.stdout[-500:]}")
        shutil.rmtree(target, ignore_errors=True)
        (scratch / "lib").rename(target)
