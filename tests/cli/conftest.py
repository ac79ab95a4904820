"""The demonstration with Spark, which takes longer than all other tests of the command line together: it runs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncgroup.java import JavaNotFound, find_java, require_java
from tests.cli.programs import Running
from tests.one_spark import do_without


@pytest.fixture(scope="session")
def demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `spark_demo` runs, and keeps its files in `kept`."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="session")
def spark_demo(demo_directory: Path) -> Iterator[Running]:
    """The demonstration with Spark, under way; the first test of this directory starts it if one waits for its end."""
    try:
        require_java("run Spark")
    except JavaNotFound as error:
        do_without(f"no Spark: {error}")
    arguments = ("demo", "--json", "--rows", "20000", "--keep", str(demo_directory / "kept"))
    with Running(*arguments, cwd=demo_directory) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _spark_demo_beside(request: pytest.FixtureRequest) -> None:
    wanted = any("spark_demo" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if wanted and find_java() is not None:  # where there is none, the test that waits for it says so
        request.getfixturevalue("spark_demo")
