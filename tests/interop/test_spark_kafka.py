"""Spark's own Kafka source and sink against the embedded cluster: batch write, batch read, an availableNow stream."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.java import JavaNotFound
from asyncgroup.testing.kafka_jars import KafkaJarsUnavailable
from tests.interop.spark_jars import spark_kafka_jars
from tests.interop.spark_program import ROWS

LIMIT = 100.0


@pytest.fixture(scope="module")
def jars() -> list[Path]:
    try:
        return spark_kafka_jars()
    except (JavaNotFound, KafkaJarsUnavailable) as error:
        if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"no Spark with Kafka: {error}")


async def run(*arguments: str) -> list[list[Any]]:
    """The program's last word."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.interop.spark_program", *arguments),
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT):
            said, complaints = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0, complaints.decode()[-3000:]
    found: list[list[Any]] = json.loads(said.decode().splitlines()[-1])
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
async def test_spark_writes_reads_and_streams(jars: list[Path], tmp_path: Path, times: int) -> None:
    async with EmbeddedCluster(nodes=3) as cluster:
        for topic in ("written", "streamed"):
            cluster.create_topic(topic, 3)
        read = await run(cluster.bootstrap_servers, str(tmp_path), str(times), *map(str, jars))
        written = cluster.records("written")
        wanted = {(b"%d" % number, b"v%d" % number) for number in range(times * ROWS)}
        assert {(record.key, record.value) for record in written} == wanted
        assert len(written) == len(wanted)
        assert sorted(r.value or b"" for r in cluster.records("streamed")) == sorted(
            value for _, value in wanted
        )
        starts = {0: 5, 1: 0}
        assert {
            (key.encode(), value.encode(), partition, offset) for key, value, partition, offset in read
        } == {
            (r.key, r.value, r.partition, r.offset)
            for r in written
            if r.offset >= starts.get(r.partition, 1 << 60)
        }
