"""The stories of `tests/stories/faults.py` on an Apache Kafka of their own, which they kill and damage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.stories import faults
from tests.stories.proxy import TcpProxy
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.asyncio


class FrailEnvironment(RealEnvironment):
    """Sessions long enough for "twice the session timeout" to be a fair bound on a slow machine."""

    session_timeout = 6.0
    heartbeat_interval = 0.5


@pytest.fixture(scope="module")
def frail_kafka(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    with ApacheKafka() as kafka:
        yield kafka


async def test_the_broker_is_killed(frail_kafka: ApacheKafka, tmp_path: Path):
    async with FrailEnvironment(frail_kafka.bootstrap_servers, tmp_path, frail_kafka) as env:
        await faults.the_broker_is_killed(env, lambda: frail_kafka.kill(1), lambda: frail_kafka.start_node(1))


async def test_the_broker_hangs(frail_kafka: ApacheKafka, tmp_path: Path):
    async with FrailEnvironment(frail_kafka.bootstrap_servers, tmp_path, frail_kafka) as env:
        await faults.the_broker_hangs(env, lambda: frail_kafka.suspend(1), lambda: frail_kafka.resume(1))


async def test_a_topic_is_made_anew(frail_kafka: ApacheKafka, tmp_path: Path):
    async with FrailEnvironment(frail_kafka.bootstrap_servers, tmp_path, frail_kafka) as env:
        await faults.a_topic_is_made_anew(env)


async def test_a_log_is_cut_short(frail_kafka: ApacheKafka, tmp_path: Path):
    async with FrailEnvironment(frail_kafka.bootstrap_servers, tmp_path, frail_kafka) as env:

        def lose_records() -> None:
            frail_kafka.kill(1)
            for partition in range(4):
                shutil.rmtree(frail_kafka.data(1) / f"{env.topic}-{partition}")
            frail_kafka.start_node(1)

        await faults.a_log_is_cut_short(env, lose_records)


async def test_connections_are_cut(frail_kafka: ApacheKafka, tmp_path: Path):
    servers = frail_kafka.bootstrap_servers
    async with (
        TcpProxy() as proxy,
        FrailEnvironment(servers, tmp_path, frail_kafka, connector=proxy.connect) as env,
    ):
        await faults.connections_are_cut(env, proxy)
