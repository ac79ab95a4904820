"""The jars of Apache Kafka, and of Spark's own Kafka source for comparisons, downloaded once per user by `ivy`.

Ivy fetches them from its default repository into the user's cache (see `asyncgroup.java.user_cache`): Kafka with its
dependencies, once per version, 47 jars, 44 MB, about 30 s; Spark's Kafka source, four jars, 10 MB, without dependencies:
some of those are not available, and pyspark contains all that are needed.

The environment variable `ASYNCGROUP_KAFKA_JARS` names a directory that contains Kafka's jars already (such as `libs/` of a
Kafka distribution). For networks with their own proxy or repository see `ivy`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Final

from asyncgroup.errors import ConfigError
from asyncgroup.java import require_java, user_cache
from asyncgroup.testing.apache_kafka.ivy import KafkaJarsUnavailable, download_lock, ivy_command, ivy_jar

__all__ = [
    "KAFKA_VERSION",
    "SPARK_KAFKA_VERSION",
    "KafkaJarsUnavailable",
    "kafka_jars",
    "spark_kafka_jars",
]

KAFKA_VERSION: Final = "4.3.1"
"""The release that is used by default; 4.4.0 lacks the module kafka-tools in the public repository."""

# Besides the broker: its command-line tools (their dependencies come with the broker, or are needed by Connect only), and
# a logger, without which a broker logs nothing.
_IVY_FILE: Final = """\
<ivy-module version="2.0">
  <info organisation="asyncgroup" module="apache-kafka"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{version}" conf="default" transitive="false"/>
    <dependency org="org.apache.kafka" name="kafka-tools-api" rev="{version}" conf="default" transitive="false"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default"/>
  </dependencies>
</ivy-module>
"""
_NAMED_JARS: Final = ("kafka_2.13", "kafka-clients", "kafka-server", "kafka-tools")
_FETCHED_MARK: Final = "[SUCCESSFUL ]"  # part of the line that Ivy prints for each file

SPARK_KAFKA_VERSION: Final = "4.2.0"
"""The newest release of the source in the public repository; it runs on Spark 4.2 and 4.3."""

_SPARK_JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_KAFKA_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


def kafka_jars(version: str = KAFKA_VERSION, *, limit: float = 300.0) -> Path:
    """Return the directory with the jars of this Kafka version, which are downloaded once; progress goes to stderr.

    If several processes call it at the same time, one downloads and the others wait. `limit` in seconds applies to the
    wait and to the download each. Raises `KafkaJarsUnavailable`, and `JavaNotFound` if there is no Java to run Ivy.
    """
    if (given := os.environ.get("ASYNCGROUP_KAFKA_JARS")) and _is_version(Path(given), version):
        return _own_directory(Path(given))
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ConfigError("version", version, "a release of Apache Kafka such as 4.3.1")
    target = user_cache() / "kafka" / version
    if _is_complete(target, version):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with download_lock(target.with_name(f"{version}.lock"), limit):
        if not _is_complete(target, version):
            _fetch_kafka(version, target, limit)
    return target


def _is_version(directory: Path, version: str) -> bool:
    """Whether to use the user's directory: for the default version always, for others only if it contains them."""
    return version == KAFKA_VERSION or (directory / f"kafka-clients-{version}.jar").is_file()


def _own_directory(directory: Path) -> Path:
    if not any(directory.glob("kafka-clients-*.jar")):
        raise KafkaJarsUnavailable(f"ASYNCGROUP_KAFKA_JARS={directory} contains no kafka-clients-*.jar")
    return directory.absolute()


def _is_complete(target: Path, version: str) -> bool:
    """Whether the main jars exist. The directory is created atomically, but other programs may clean the cache."""
    return all((target / f"{name}-{version}.jar").is_file() for name in _NAMED_JARS)


def _fetch_kafka(version: str, target: Path, limit: float) -> None:
    java = require_java("fetch Apache Kafka")
    ivy = ivy_jar()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version}-") as name:
        scratch = Path(name)
        command = ivy_command(java, ivy, scratch, _IVY_FILE.format(version=version), os.environ)
        _run_ivy(command, scratch / "ivy.log", version, limit)
        if not _is_complete(scratch / "lib", version):
            raise KafkaJarsUnavailable(
                f"Ivy succeeded, but did not fetch all jars: {_error_lines(scratch / 'ivy.log')}"
            )
        shutil.rmtree(target, ignore_errors=True)
        (scratch / "lib").rename(target)


def _run_ivy(command: list[str], log: Path, version: str, limit: float) -> None:
    _show(f"downloading Apache Kafka {version} (44 MB, once) …\n")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    killer = threading.Timer(limit, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        _follow(process.stdout, log)
        code = process.wait()
    finally:
        overdue = not killer.is_alive()
        killer.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if code != 0:
        reason = f"took longer than {limit:g} s" if overdue else f"failed with exit code {code}"
        raise KafkaJarsUnavailable(
            f"downloading Apache Kafka {version} with Ivy {reason}: {_error_lines(log)}"
        )


def _follow(lines: IO[str], log: Path) -> None:
    """Copy Ivy's output to the log until it ends; on a terminal show the number of files fetched in one line."""
    fetched = 0
    has_terminal = sys.stderr is not None and sys.stderr.isatty()
    with log.open("w") as copy:
        for line in lines:
            copy.write(line)
            if _FETCHED_MARK in line:
                fetched += 1
                if has_terminal:
                    _show(f"\r{fetched} files fetched")
    if has_terminal and fetched:
        _show("\n")


def _show(text: str) -> None:
    """Write to standard error, if there is one; a failure to show progress does not stop the download."""
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def _error_lines(log: Path, lines: int = 3) -> str:
    """Return the first lines of Ivy's log that mention an error, or its last lines if none does."""
    printed = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in printed if re.search(r"\berror at\b|exception|failed", line, re.IGNORECASE)]
    return "\n".join(errors[:lines] or printed[-lines:])


def spark_kafka_jars(*, limit: float = 100.0) -> list[Path]:
    """Return the jars, for the setting `spark.jars`, and download them first if needed.

    `limit` in seconds applies to the download, and to the wait for another process that downloads. Raises
    KafkaJarsUnavailable and JavaNotFound.
    """
    target = user_cache() / "spark-kafka" / SPARK_KAFKA_VERSION
    target.parent.mkdir(parents=True, exist_ok=True)
    with download_lock(target.with_name(f"{SPARK_KAFKA_VERSION}.lock"), limit):
        if _missing_jars(target):
            _fetch_spark(target, limit)
    return _spark_paths(target)


def _spark_paths(target: Path) -> list[Path]:
    return [target / f"{name}-{revision}.jar" for _, name, revision in _SPARK_JARS]


def _missing_jars(target: Path) -> list[str]:
    return [jar.name for jar in _spark_paths(target) if not jar.is_file()]


def _fetch_spark(target: Path, limit: float) -> None:
    java, ivy = require_java("fetch Spark's Kafka source"), ivy_jar()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{SPARK_KAFKA_VERSION}-") as name:
        scratch = Path(name)
        command = ivy_command(java, ivy, scratch, _spark_ivy_file(), os.environ)
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


def _spark_ivy_file() -> str:
    wanted = "".join(
        f'<dependency org="{org}" name="{jar}" rev="{revision}" conf="default->master" transitive="false"/>'
        for org, jar, revision in _SPARK_JARS
    )
    module = '<info organisation="asyncgroup" module="spark-kafka"/>'
    return f'<ivy-module version="2.0">{module}<dependencies>{wanted}</dependencies></ivy-module>'
