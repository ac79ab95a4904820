"""The flights pipeline as a program that is killed and restarted."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.demo.expected import PipelineFigures
from asyncgroup.demo.flights import find_data, in_order, read_flights
from asyncgroup.demo.queries import figures

pytest.importorskip(
    "google.protobuf", reason="transformWithState needs protobuf: pip install 'asyncgroup[demo]'"
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 1_000.0
FLIGHTS = 30_000


class Program:
    """The pipeline's program: a process group with its own Spark."""

    def __init__(self, servers: str, output: Path) -> None:
        self._arguments = [
            *("-b", servers, "--output", str(output / "results"), "--plot", str(output / "plot.svg")),
            *("--rows-per-trigger", str(FLIGHTS // 6)),
        ]

    async def start(self) -> asyncio.subprocess.Process:
        module = ("-m", "asyncgroup.spark.examples.flights")
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *module,
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def killed_at(self, batches: int) -> None:
        """Run it until it has printed this number of batches, and kill it and its JVM during the next one."""
        process = await self.start()
        assert process.stdout is not None
        try:
            while f"batches={batches}," not in (line := (await process.stdout.readline()).decode()):
                assert line, "the program ended by itself"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def done(self) -> None:
        """Run it to the end."""
        process = await self.start()
        try:
            await process.communicate()
            assert process.returncode == 0
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def results(spark: SparkSession, servers: str, output: Path) -> PipelineFigures:
    from asyncgroup.spark.examples.flights.pipeline import Pipeline

    pipeline: Any = Pipeline(bootstrap_servers=servers, output=(output / "results").as_uri())
    session = pipeline.session(spark)
    return figures(pipeline.delays(session), pipeline.streaks(session))


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(1_100)
async def test_the_results_after_two_kills_equal_those_of_the_csv(
    spark: SparkSession, tmp_path: Path
) -> None:
    from asyncgroup.spark.examples.flights.events import heartbeat

    known = in_order(itertools.islice(read_flights(find_data()), FLIGHTS))
    async with EmbeddedCluster() as cluster, asyncio.timeout(LIMIT):
        for topic, partitions in (("flights", 3), ("flights-streaks", 1)):
            cluster.create_topic(topic, partitions)
        program = Program(cluster.bootstrap_servers, tmp_path)
        async with Producer(cluster.bootstrap_servers) as producer:
            for flight in known:
                await producer.enqueue("flights", flight.value, key=flight.carrier.encode())
            await producer.flush()
            await program.killed_at(1)
            await program.killed_at(3)
            await program.done()
            last = max(flight.scheduled for flight in known)
            await producer.send("flights", heartbeat(60 * (last + 30 * 24 * 60)))
        await program.done()
        found = await asyncio.to_thread(results, spark, cluster.bootstrap_servers, tmp_path)
    assert PipelineFigures.of(known).differences(found) == []
    picture = ElementTree.parse(tmp_path / "plot.svg").getroot()
    departures = sum(flight.dep_delay is not None for flight in known)
    assert any(f"({departures:,} departures)" in (each.text or "") for each in picture)
