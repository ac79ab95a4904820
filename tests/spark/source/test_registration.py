"""How `format("asyncgroup")` is registered with Spark."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import asyncgroup
from asyncgroup.spark import autoregister, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(asyncgroup.__file__).parent.parent

LOOKUP = """
import io, sys
missing = sys.argv[1:]
import pyspark_asyncgroup
assert not any(name.startswith(("asyncgroup", "pyspark.")) for name in sys.modules), "too early"
from pyspark.serializers import CPickleSerializer, read_int
from pyspark.sql.streaming import datasource
from pyspark.sql.worker.lookup_data_sources import _main
for name in missing:
    vars(datasource).pop(name, None)
    sys.modules[name] = None  # cannot be imported
out = io.BytesIO()
_main(io.BytesIO(), out)  # what Spark runs to find the sources
out.seek(0)
names = []
for _ in range(read_int(out)):
    names.append(out.read(read_int(out)).decode())
    source = CPickleSerializer().loads(out.read(read_int(out)))
    assert source.name() == names[-1]
print("names:", names)
"""
"""A program; its arguments are modules, or names of pyspark 4.2, to hide. Nothing is imported before Spark asks."""


def lookup(path: Path, *missing: str) -> str:
    """Return what Spark discovers with this directory on the path, and without some modules."""
    run = subprocess.run(
        [sys.executable, "-c", LOOKUP, *missing],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PYTHONPATH": str(path), "PATH": ""},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def build(target: Path, kind: str) -> Path:
    """The wheel, unpacked in a directory."""
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(PROJECT)).build(directory=str(target), versions=[kind])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target / "site")
    return target / "site"


@pytest.mark.skipif(
    find_spec("hatchling") is None, reason="hatchling, which builds the wheel, is not installed"
)
@pytest.mark.skipif(
    not (PROJECT / "pyproject.toml").exists(), reason="this asyncgroup is not in its repository"
)
@pytest.mark.parametrize("kind", ["standard", "editable"])
def test_the_wheel_has_a_module_that_spark_finds(tmp_path: Path, kind: str) -> None:
    if kind == "editable":
        pytest.importorskip("editables", reason="editables, which builds editable wheels, is not installed")
    site = build(tmp_path, kind)
    # site's own .pth files don't count on PYTHONPATH, so an editable wheel's asyncgroup comes from this environment
    top = {path.name for path in site.iterdir() if path.suffix not in (".dist-info", ".pth")}
    assert top == ({"asyncgroup", "pyspark_asyncgroup"} if kind == "standard" else {"pyspark_asyncgroup"})
    assert "names: ['asyncgroup']" in lookup(site)


@pytest.mark.parametrize("missing", ["asyncgroup", "aiokafka", "ReadMaxRows"])
def test_missing_packages_do_not_hide_other_sources(tmp_path: Path, missing: str) -> None:
    """Spark registers no source at all if a module raises, so the module only lacks the source."""
    package = tmp_path / "pyspark_asyncgroup"
    package.mkdir()
    (package / "__init__.py").write_text(Path(autoregister.__file__).read_text())
    other = tmp_path / "pyspark_other.py"
    other.write_text(
        "from pyspark.sql.datasource import DataSource\n"
        "class DefaultSource(DataSource):\n"
        "    @classmethod\n"
        "    def name(cls): return 'other'\n"
    )
    found = (
        ["asyncgroup", "other"] if missing == "aiokafka" else ["other"]
    )  # aiokafka is imported by the first reader
    assert f"names: {found}" in lookup(tmp_path, missing)


def test_other_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="SomethingElse"):
        _ = autoregister.SomethingElse  # type: ignore[attr-defined]
    assert autoregister.DefaultSource.name() == "asyncgroup"


def test_register_may_be_called_again(spark: SparkSession) -> None:
    register(spark)
    register(spark)


class Registry:
    """A session whose JVM already knows the source, or not."""

    def __init__(self, known: bool | None) -> None:
        self.registered: list[type] = []
        self._known = known
        self.version = "4.3.0"
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.sparkContext = SimpleNamespace(
            getConf=lambda: {"spark.python.unix.domain.socket.enabled": "true"}, pythonExec=sys.executable
        )

    @property
    def _jsparkSession(self) -> object:
        if self._known is None:
            raise AttributeError("a Connect session has none")
        manager = SimpleNamespace(dataSourceExists=lambda name: name == "asyncgroup" and self._known)
        return SimpleNamespace(sessionState=lambda: SimpleNamespace(dataSourceManager=lambda: manager))


@pytest.mark.parametrize(("known", "registered"), [(True, 0), (False, 1), (None, 1)])
def test_a_discovered_source_is_not_registered_again(known: bool | None, registered: int) -> None:
    """Spark would log a warning at each query start."""
    session = Registry(known)
    register(session)  # type: ignore[arg-type]
    assert len(session.registered) == registered


@pytest.mark.skipif(
    find_spec("pyspark_asyncgroup") is None, reason="asyncgroup is not installed from a wheel"
)
def test_spark_is_asked_whether_it_has_discovered_the_source(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "dataSource", None)
    register(spark)


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    find_spec("hatchling") is None, reason="hatchling, which builds the wheel, is not installed"
)
def test_an_installed_wheel_needs_no_call(tmp_path: Path) -> None:
    """In a separate Spark, with the embedded broker; a call of `register` has no effect."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\n"
        "from asyncgroup import Producer\n"
        "from asyncgroup.spark import local_session, register\n"
        "from asyncgroup.testing import KafkaServer\n"
        "async def produce(servers):\n"
        "    async with Producer(servers) as producer:\n"
        "        await producer.send('t', b'v')\n"
        "with KafkaServer() as kafka:\n"
        "    kafka.create_topic('t', 1)\n"
        "    asyncio.run(produce(kafka.bootstrap_servers))\n"
        "    spark = local_session()\n"
        "    options = {'kafka.bootstrap.servers': kafka.bootstrap_servers, 'subscribe': 't'}\n"
        "    print('rows:', spark.read.format('asyncgroup').options(**options).load().count())\n"
        "    register(spark)\n"
        "    print('again:', spark.read.format('asyncgroup').options(**options).load().count())\n"
        "    spark.stop()\n"
    )
    import os

    run = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(build(tmp_path, "standard"))},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "rows: 1" in run.stdout
    assert "again: 1" in run.stdout
