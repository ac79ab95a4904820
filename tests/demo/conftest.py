"""Fixtures: the demonstration with Spark, in the background because it takes longest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncgroup.java import JavaNotFound, find_java, require_java
from tests.cli.programs import BackgroundCommand
from tests.shared_spark import do_without
from tests.spark_archive import use_archive
from tests.spark_python import python_of_spark


@pytest.fixture(scope="session")
def demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of `spark_demo`, which writes its results to `kept` there."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="session")
def spark_demo(demo_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundCommand]:
    """The demonstration with Spark, running; the first test of this directory starts it if a selected test needs it."""
    try:
        use_archive(require_java("run Spark"))
    except JavaNotFound as error:
        do_without(f"no Spark: {error}")
    arguments = ("demo", "--json", "--rows", "20000", "--keep", str(demo_directory / "kept"))
    running = BackgroundCommand(*arguments, cwd=demo_directory)
    with contextlib.ExitStack() as stack:
        with python_of_spark(tmp_path_factory.mktemp("python")):
            stack.enter_context(running)
        yield running


@pytest.fixture(scope="session", autouse=True)
def _spark_demo_beside(request: pytest.FixtureRequest) -> None:
    if hasattr(request.config, "workerinput"):
        return  # other workers run other tests at the same time, and each of them would start a demonstration
    wanted = any("spark_demo" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if wanted and find_java() is not None:  # without Java the test that needs it is skipped or fails
        request.getfixturevalue("spark_demo")
