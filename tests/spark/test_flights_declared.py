"""The flights pipeline as one of Spark's declarative pipelines, run by `spark-pipelines`."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli.demo.expected import PipelineFigures
from asyncgroup.cli.demo.flights import Flight, find_data, in_order, read_flights
from asyncgroup.cli.demo.queries import figures
from asyncgroup.spark import examples, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 900.0
FLIGHTS = 8_000
DEFINITIONS = Path(examples.__file__).parent / "flights" / "declarative"
NEEDED = ("grpc", "grpc_status", "yaml", "zstandard", "google.protobuf")


def missing() -> str:
    """Packages that `spark-pipelines` needs and that are not here."""

    def is_here(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    return ", ".join(name for name in NEEDED if not is_here(name))


def prepared(place: Path, servers: str) -> Path:
    """A copy of the definitions with a storage of their own; returns the specification."""
    shutil.copy(DEFINITIONS / "tables.py", place)
    spec = (DEFINITIONS / "spark-pipeline.yml").read_text(encoding="utf-8")
    spec = spec.replace("file:///tmp/flights-pipeline", (place / "storage").as_uri())
    (place / "spark-pipeline.yml").write_text(spec.replace("127.0.0.1:9092", servers), encoding="utf-8")
    return place / "spark-pipeline.yml"


async def run(spec: Path) -> str:
    """`spark-pipelines run`; returns what it has said.

    Its exit code says nothing: after a run of Python functions that went well, pyspark 4.3's client gets the sums of
    their accumulators too, does not know them (UNKNOWN_RESPONSE), and ends with 1.
    """
    import pyspark

    require_spark()
    # settings on the command line do not reach the Spark that its server starts
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": str(spec.parent / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    lines = (f"{key} {value}\n" for key, value in settings.items())
    (spec.parent / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"),
        *("run", "--spec", str(spec)),
        cwd=spec.parent,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(spec.parent),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said


def found(spark: SparkSession, servers: str, warehouse: Path) -> PipelineFigures:
    from asyncgroup.spark.examples.flights.pipeline import Pipeline

    pipeline = Pipeline(bootstrap_servers=servers, output=warehouse.as_uri())
    session = pipeline.session(spark)
    return figures(session.read.parquet(str(warehouse / "delays")), pipeline.streaks(session))


def known() -> list[Flight]:
    return in_order(itertools.islice(read_flights(find_data()), FLIGHTS))


@pytest.mark.soak
@pytest.mark.asyncio
@pytest.mark.timeout(1_000)
@pytest.mark.skipif(bool(missing()), reason=f"pip install 'asyncgroup[pipelines]': no {missing()}")
async def test_declared_it_gives_what_the_csv_says(spark: SparkSession, tmp_path: Path) -> None:
    from asyncgroup.spark.examples.flights.events import heartbeat

    flights = await asyncio.to_thread(known)
    async with EmbeddedCluster() as cluster, asyncio.timeout(LIMIT):
        for topic, partitions in (("flights", 3), ("flights-streaks", 1)):
            cluster.create_topic(topic, partitions)
        spec = prepared(tmp_path, cluster.bootstrap_servers)
        async with Producer(cluster.bootstrap_servers) as producer:
            for flight in flights:
                await producer.enqueue("flights", flight.value, key=flight.carrier.encode())
            await producer.flush()
            # beside the flights, since the flows have no limit: all of it is one batch, where nothing comes late
            last = max(flight.scheduled for flight in flights)
            await producer.send("flights", heartbeat(60 * (last + 30 * 24 * 60)))
        assert "Run is COMPLETED" in (said := await run(spec)), said
        results = await asyncio.to_thread(found, spark, cluster.bootstrap_servers, tmp_path / "warehouse")
    assert PipelineFigures.of(flights).differences(results) == []
