"""The download of the jars of Spark's Kafka source, with a shell script instead of Java that does what Ivy would do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from asyncgroup.java import Java
from asyncgroup.testing.apache_kafka import jars
from asyncgroup.testing.apache_kafka.jars import SPARK_KAFKA_VERSION, KafkaJarsUnavailable, spark_kafka_jars
from asyncgroup.testing.java_server import jar_download as module

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")

NAMES = [f"{name}-{revision}.jar" for _, name, revision in jars._SPARK_JARS]
FETCH = f'mkdir -p "$lib"; cd "$lib"; touch {" ".join(NAMES)}'


@pytest.fixture
def java_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Use a shell script instead of Java; `$lib` is the directory in which Ivy should store the jars."""
    monkeypatch.setenv("ASYNCGROUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "ivy_jar", lambda: Path("/no/ivy.jar"))

    def put(script: str) -> None:
        executable = tmp_path / "java"
        find = 'while [ "$1" != -retrieve ]; do shift; done; lib="${2%/*}"'
        executable.write_text(f"#!/bin/sh\necho call >> {tmp_path}/calls\n{find}\n{script}\n")
        executable.chmod(0o700)
        java = Java(home=tmp_path, executable=executable, version=17, origin="PATH")
        monkeypatch.setattr(module, "require_java", lambda _: java)

    return put


def test_jars_are_downloaded_once_and_again_if_one_is_missing(tmp_path: Path, java_that) -> None:
    java_that(FETCH)
    fetched = spark_kafka_jars()
    assert [jar.name for jar in fetched] == NAMES
    assert all(jar.is_file() for jar in fetched)
    assert spark_kafka_jars() == fetched
    assert (tmp_path / "calls").read_text() == "call\n"
    fetched[0].unlink()
    assert spark_kafka_jars()[0].is_file()
    names = sorted(path.name for path in (tmp_path / "cache/spark-kafka").iterdir())
    assert names == [SPARK_KAFKA_VERSION, f"{SPARK_KAFKA_VERSION}.lock"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no network; exit 3", "failed with exit code 3: no network"),
        ('mkdir -p "$lib"; touch "$lib"/' + NAMES[0], f"Ivy did not fetch {NAMES[1]}, "),
    ],
)
def test_a_failed_download_reports_the_reason(java_that, script: str, reason: str) -> None:
    java_that(script)
    with pytest.raises(KafkaJarsUnavailable, match=reason):
        spark_kafka_jars()


def test_a_download_has_a_time_limit(java_that) -> None:
    java_that("exec sleep 60")
    with pytest.raises(KafkaJarsUnavailable, match=r"Spark's Kafka source with Ivy took longer than 0\.3 s"):
        spark_kafka_jars(limit=0.3)
