"""The demonstration on a running Kafka, on which it leaves no topics and groups."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from asyncgroup import Cluster
from asyncgroup.wire import messages as m
from tests.cli.programs import run, started
from tests.demo.flights import shortened
from tests.real.support import RunningKafka, until_shown


async def remaining_names(servers: str) -> list[str]:
    """Return the topics and groups of the demonstration."""
    async with Cluster(servers) as cluster:
        names = list(await cluster.all_topics())
        for node in cluster.view.brokers:
            names += [group.group_id for group in (await cluster.request(node, m.ListGroupsRequest())).groups]
    return [name for name in names if name.startswith("asyncgroup-demo")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flights", [40_000, pytest.param(336_776, marks=pytest.mark.soak)])
async def test_it_runs_twice_and_removes_its_topics_and_groups(
    apache_kafka: RunningKafka, flights: int
) -> None:
    servers = apache_kafka.bootstrap_servers
    for rows in (flights, 20_000):
        ended = run("demo", "--no-spark", "--json", "--rows", str(rows), "-b", servers, limit=140)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.splitlines()[-1] == f"{rows:,} of {rows:,} flights, each exactly once"
        assert len(json.loads(ended.stdout)["rebalances"]) == 2
        await until_shown(partial(remaining_names, servers), [])


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_with_spark_it_removes_its_topics_and_groups(
    apache_kafka: RunningKafka, tmp_path: Path
) -> None:
    servers, kept = apache_kafka.bootstrap_servers, tmp_path / "kept"
    arguments = ("demo", "--json", "--rows", "20000", "--keep", str(kept), "-b", servers)
    ended = run(*arguments, limit=580, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert (result["distinct"], result["hours"], result["streaks"]) == (20_000, 3_805, 12)
    await until_shown(partial(remaining_names, servers), [])


@pytest.mark.full
@pytest.mark.timeout(180)
async def test_it_removes_its_topics_and_groups_when_interrupted(
    apache_kafka: RunningKafka, tmp_path: Path
) -> None:
    servers = apache_kafka.bootstrap_servers
    with started("demo", "--no-spark", "-b", servers, path=[shortened(tmp_path, 30_000)]) as demo:
        while "generation" not in (line := demo.line()):
            assert line, "the demonstration ended too early"
        code, _, err = demo.end(signal.SIGINT)
    assert (code, err) == (130, "")
    await until_shown(partial(remaining_names, servers), [])
