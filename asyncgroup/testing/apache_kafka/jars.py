"""The jars of Apache Kafka, and of Spark's own Kafka source for comparisons, downloaded once per user (`jar_download`).

Ivy fetches them from its default repository into the user's cache (see `asyncgroup.java.user_cache`): Kafka with its
dependencies, once per version, 47 jars, 44 MB, about 30 s; Spark's Kafka source, four jars, 10 MB, without dependencies:
some of those are not available, and pyspark contains all that are needed.

The environment variable `ASYNCGROUP_KAFKA_JARS` names a directory that contains Kafka's jars already (such as `libs/` of a
Kafka distribution). For networks with their own proxy or repository see `java_server.ivy`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.java import user_cache
from asyncgroup.testing.java_server.jar_download import JarDownload

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

SPARK_KAFKA_VERSION: Final = "4.2.0"
"""The newest release of the source in the public repository; it runs on Spark 4.2 and 4.3."""

_SPARK_JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_KAFKA_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


class KafkaJarsUnavailable(AsyncGroupError):
    """Kafka's jars are not in the cache and could not be downloaded; the message gives the reason."""


def kafka_jars(version: str = KAFKA_VERSION, *, limit: float = 300.0) -> Path:
    """Return the directory with the jars of this Kafka version, which are downloaded once; progress goes to stderr.

    If several processes call it at the same time, one downloads and the others wait. `limit` in seconds applies to the
    wait and to the download each. Raises `KafkaJarsUnavailable`, and `JavaNotFound` if there is no Java to run Ivy.
    """
    if (given := os.environ.get("ASYNCGROUP_KAFKA_JARS")) and _is_version(Path(given), version):
        return _own_directory(Path(given))
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ConfigError("version", version, "a release of Apache Kafka such as 4.3.1")
    download = JarDownload(
        name=f"Apache Kafka {version}",
        size="44 MB",
        ivy_file=_IVY_FILE.format(version=version),
        missing=lambda directory: [
            f"{name}-{version}.jar"
            for name in _NAMED_JARS
            if not (directory / f"{name}-{version}.jar").is_file()
        ],
        error=KafkaJarsUnavailable,
        alternative=", or set ASYNCGROUP_KAFKA_JARS to a directory with Kafka's jars",
    )
    return download.into(user_cache() / "kafka" / version, limit)


def _is_version(directory: Path, version: str) -> bool:
    """Whether to use the user's directory: for the default version always, for others only if it contains them."""
    return version == KAFKA_VERSION or (directory / f"kafka-clients-{version}.jar").is_file()


def _own_directory(directory: Path) -> Path:
    if not any(directory.glob("kafka-clients-*.jar")):
        raise KafkaJarsUnavailable(f"ASYNCGROUP_KAFKA_JARS={directory} contains no kafka-clients-*.jar")
    return directory.absolute()


def spark_kafka_jars(*, limit: float = 100.0) -> list[Path]:
    """Return the jars, for the setting `spark.jars`, and download them first if needed.

    `limit` in seconds applies to the download, and to the wait for another process that downloads. Raises
    KafkaJarsUnavailable and JavaNotFound.
    """
    download = JarDownload(
        name="Spark's Kafka source",
        size="10 MB",
        ivy_file=_spark_ivy_file(),
        missing=lambda directory: [jar.name for jar in _spark_paths(directory) if not jar.is_file()],
        error=KafkaJarsUnavailable,
    )
    return _spark_paths(download.into(user_cache() / "spark-kafka" / SPARK_KAFKA_VERSION, limit))


def _spark_paths(target: Path) -> list[Path]:
    return [target / f"{name}-{revision}.jar" for _, name, revision in _SPARK_JARS]


def _spark_ivy_file() -> str:
    wanted = "".join(
        f'<dependency org="{org}" name="{jar}" rev="{revision}" conf="default->master" transitive="false"/>'
        for org, jar, revision in _SPARK_JARS
    )
    module = '<info organisation="asyncgroup" module="spark-kafka"/>'
    return f'<ivy-module version="2.0">{module}<dependencies>{wanted}</dependencies></ivy-module>'
