"""The flights pipeline as one of Spark's declarative pipelines, run by `spark-pipelines`."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.demo.expected import PipelineFigures
from asyncgroup.demo.flights import Flight, find_data, in_order, read_flights
from asyncgroup.demo.queries import figures
from asyncgroup.spark import examples, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 900.0
FLIGHTS = 8_000
DEFINITIONS = Path(examples.__file__).parent / "flights" / "declarative"
NEEDED = ("grpc", "grpc_status", "yaml", "zstandard", "google.protobuf")


def missing() -> str:
    """Return the packages that `spark-pipelines` needs and that are not installed."""

    def is_here(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    return ", ".join(name for name in NEEDED if not is_here(name))


def prepared(place: Path, servers: str) -> Path:
    """Copy the directory, with separate storage; return the specification."""
    for source in DEFINITIONS.iterdir():
        if source.is_file():
            text = source.read_text(encoding="utf-8")
            text = text.replace("/tmp/flights-pipeline", str(place)).replace("127.0.0.1:9092", servers)
            (place / source.name).write_text(text, encoding="utf-8")
    return place / "spark-pipeline.yml"


async def run(spec: Path) -> tuple[int | None, str]:
    """Run `spark-pipelines run`; return its exit code and output."""
    import pyspark

    require_spark()
    process = await asyncio.create_subprocess_exec(
        str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"),
        *("run", "--spec", str(spec)),
        cwd=spec.parent,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(spec.parent),
            "SPARK_TESTING": "1",  # the only way to use a free port in place of 15002
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, output


def found(spark: SparkSession, servers: str, warehouse: Path) -> PipelineFigures:
    from asyncgroup.spark.examples.flights.pipeline import Pipeline

    pipeline = Pipeline(bootstrap_servers=servers, output=warehouse.as_uri())
    session = pipeline.session(spark)
    return figures(session.read.parquet(str(warehouse / "delays")), pipeline.streaks(session))


def known() -> list[Flight]:
    return in_order(itertools.islice(read_flights(find_data()), FLIGHTS))


@pytest.mark.soak
@pytest.mark.timeout(1_000)
@pytest.mark.skipif(bool(missing()), reason=f"pip install 'asyncgroup[pipelines]': no {missing()}")
async def test_the_results_of_two_runs_equal_those_of_the_csv(spark: SparkSession, tmp_path: Path) -> None:
    from asyncgroup.spark.examples.flights.events import heartbeat

    flights = await asyncio.to_thread(known)
    async with EmbeddedCluster() as cluster, asyncio.timeout(LIMIT):
        for topic, partitions in (("flights", 3), ("flights-streaks", 1)):
            cluster.create_topic(topic, partitions)
        spec = prepared(tmp_path, cluster.bootstrap_servers)
        async with Producer(cluster.bootstrap_servers) as producer:
            for part in (flights[: FLIGHTS // 2], flights[FLIGHTS // 2 :]):
                for flight in part:
                    await producer.enqueue("flights", flight.value, key=flight.carrier.encode())
                await producer.flush()
                if part[-1] is flights[-1]:
                    # produced concurrently with the flights: the flows have no limit, so one batch has all rows, and none is late
                    last = max(flight.scheduled for flight in flights)
                    await producer.send("flights", heartbeat(60 * (last + 30 * 24 * 60)))
                code, output = await run(spec)
                assert "Run is COMPLETED" in output, output
                assert code == 0, output
        results = await asyncio.to_thread(found, spark, cluster.bootstrap_servers, tmp_path / "warehouse")
    assert PipelineFigures.of(flights).differences(results) == []
