"""One Spark for the tests of all directories, since each start of its JVM takes seconds; `tests/conftest.py` takes it in.

- `spark`: the session, with Spark's Kafka source if anybody asks for that.
- `spark_with_kafka`: the same, skipped where the source's jars cannot be had.
- `spark_gateway`: where another process finds this Spark, as its environment; `SHARED_SPARK` is a conftest.py for there.

Where no Java or no jars can be had these tests are skipped with the reason; `ASYNCGROUP_REQUIRE_KAFKA=1` makes that a
failure.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from asyncgroup.java import JavaNotFound, require_java
from asyncgroup.testing.kafka_jars import KafkaJarsUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SHARED_SPARK", "do_without", "spark", "spark_gateway", "spark_with_kafka"]

SHARED_SPARK: Final = """
import pytest

@pytest.fixture(scope="session")
def spark():
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # that of the environment
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    yield SparkSession(SparkContext(conf=SparkConf(_jconf=java.getConf()), gateway=gateway, jsc=java))
"""
"""The fixture that the README leaves to its reader, for a process that shares our Spark."""

QUICK: Final = {
    # a job of a few rows is done before its code would be compiled; the better compilers never pay here
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    # on a local disk the default one starts a program for some files: 100 ms more for each batch of a stream
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_no_kafka = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session."""
    from asyncgroup.spark import local_session
    from asyncgroup.testing.spark_jars import spark_kafka_jars

    try:
        require_java("run Spark")
    except JavaNotFound as error:
        do_without(f"no Spark: {error}")
    derby = f"-Dderby.system.home={tempfile.gettempdir()}"
    settings = QUICK | {"spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {derby}"}
    if any("spark_with_kafka" in getattr(item, "fixturenames", ()) for item in request.session.items):
        try:
            settings["spark.jars"] = ",".join(map(str, spark_kafka_jars()))
        except (JavaNotFound, KafkaJarsUnavailable) as error:
            request.config.stash[_no_kafka] = str(error)
    handler = signal.getsignal(signal.SIGINT)
    session = local_session("asyncgroup tests", config=settings)
    assert signal.getsignal(signal.SIGINT) is handler
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_with_kafka(spark: SparkSession, pytestconfig: pytest.Config) -> SparkSession:
    """The session, if it has Spark's Kafka source."""
    if reason := pytestconfig.stash.get(_no_kafka, ""):
        do_without(f"no Spark with Kafka: {reason}")
    return spark


@pytest.fixture(scope="session")
def spark_gateway(spark: SparkSession) -> dict[str, str]:
    """What `pyspark.java_gateway.launch_gateway` of another process looks for."""
    parameters = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
    }


def do_without(reason: str) -> NoReturn:
    """Skip the test, or fail it."""
    if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
