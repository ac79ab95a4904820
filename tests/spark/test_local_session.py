"""The session created by `local_session`, with a real Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgroup.spark import configure, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_uses_only_localhost_and_temporary_directories(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.uiWebUrl is None
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    warehouse = Path(str(conf.get("spark.sql.warehouse.dir")))
    assert not warehouse.is_relative_to(Path.cwd())


def test_a_running_session_is_returned_unchanged(spark: SparkSession) -> None:
    assert local_session("another", cores=1) is spark


def test_configure_logs_no_warning_about_it(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    assert configure(type(spark).builder).getOrCreate() is spark
    assert caplog.messages == []


FORGETFUL = """
from asyncgroup.spark import local_session
from pyspark.sql import functions as F

spark = local_session()
print(spark.range(10).select(F.udf(lambda x: x + 1, "long")("id")).count(), flush=True)
"""


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_program_that_does_not_stop_spark_ends_without_output(tmp_path: Path) -> None:
    """The JVM ends before the program: that must not print an error, and its files must be removed."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    program = [sys.executable, "-c", FORGETFUL]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=380, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "10\n", "")
    assert list(tmp_path.iterdir()) == []
