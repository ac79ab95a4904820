"""Fixtures with one Spark session for all tests, because each start of its JVM takes seconds.

`tests/conftest.py` imports them.

- `spark`: the session; it has Spark's Kafka source if any selected test needs that.
- `spark_with_kafka`: the same; tests are skipped if the jars of the source are not available.
- `spark_gateway`: environment variables for another process to connect to this Spark; `SHARED_SPARK` is a conftest.py
  for it.

Without Java or the jars these tests are skipped with the reason; with `ASYNCGROUP_REQUIRE_KAFKA=1` they fail.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from asyncgroup.java import JavaNotFound, require_java
from asyncgroup.testing.apache_kafka.jars import KafkaJarsUnavailable
from tests.spark_archive import stopping_spark, use_archive
from tests.spark_python import python_of_spark

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

    gateway = launch_gateway()  # connects to the one that the environment variables name
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    yield SparkSession(SparkContext(conf=SparkConf(_jconf=java.getConf()), gateway=gateway, jsc=java))
"""
"""A `spark` fixture for a process that uses the session of the test suite."""

QUICK: Final = {
    # a job of a few rows ends before code generation would pay off
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    # on a local disk the default manager starts a process for some files: 100 ms more for each batch of a stream
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_no_kafka = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session, shared by all tests; it is stopped after the last one."""
    from asyncgroup.spark import local_session, require_spark
    from asyncgroup.testing.apache_kafka.jars import spark_kafka_jars

    try:
        java = require_java("run Spark")
    except JavaNotFound as error:
        do_without(f"no Spark: {error}")
    use_archive(java)
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dderby.system.home={tempfile.gettempdir()}"]
    settings = dict(QUICK)
    if any("spark_with_kafka" in getattr(item, "fixturenames", ()) for item in request.session.items):
        try:
            settings["spark.jars"] = ",".join(map(str, spark_kafka_jars()))
        except (JavaNotFound, KafkaJarsUnavailable) as error:
            request.config.stash[_no_kafka] = str(error)
    handler = signal.getsignal(signal.SIGINT)
    with stopping_spark(java, options) as running:
        settings["spark.driver.extraJavaOptions"] = " ".join(options)
        with python_of_spark(tmp_path_factory.mktemp("python")):
            session = running.session = local_session("asyncgroup tests", config=settings)
        require_spark()  # which sets the Python of Spark that other tests start
        assert signal.getsignal(signal.SIGINT) is handler
        request.config.pluginmanager.register(LastUse(request.session, running.stop))
        yield session


class LastUse:
    """Plugin that stops Spark after the last test with the fixture, as its JVM holds a gigabyte."""

    def __init__(self, session: pytest.Session, stop: Callable[[], None]) -> None:
        using = [item for item in session.items if "spark" in getattr(item, "fixturenames", ())]
        self._last = using[-1].nodeid if using else ""
        self._stop = stop

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        if item.nodeid == self._last:
            self._stop()


@pytest.fixture(scope="session")
def spark_with_kafka(spark: SparkSession, pytestconfig: pytest.Config) -> SparkSession:
    """The Spark session; skip the test if it lacks Spark's Kafka source."""
    if reason := pytestconfig.stash.get(_no_kafka, ""):
        do_without(f"no Spark with Kafka: {reason}")
    return spark


@pytest.fixture(scope="session")
def spark_gateway(spark: SparkSession) -> dict[str, str]:
    """The environment variables from which `launch_gateway` in another process finds this session."""
    parameters = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
    }


def do_without(reason: str) -> NoReturn:
    """Skip the test with this reason, or fail it if Kafka is required."""
    if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
