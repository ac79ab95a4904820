"""Mistakes that new users of the fixtures make: each error message says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.testing import KafkaServer
from asyncgroup.testing.kit.marker_options import MarkerOptions
from tests.testing.suites import run_suite

WITHOUT_PYTEST_ASYNCIO = """
import asyncio
import pytest

def test_that_blocks(kafka_cluster): ...

async def test_unmarked(kafka_cluster): ...

async def test_virtual_unmarked(virtual_kafka): ...

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_with_anyio(kafka_cluster):
    _, writer = await asyncio.open_connection("127.0.0.1", kafka_cluster.nodes[1].port)
    writer.close()

def test_a_fixture_of_ones_own(own): ...

@pytest.fixture
def own(kafka_cluster): ...

def test_server(kafka_server): ...
"""


def outcomes(text: str) -> dict[str, str]:
    return {
        name: word for word, name in re.findall(r"^(PASSED|FAILED|ERROR) \S*?::(\w+)", text, re.MULTILINE)
    }


def test_without_pytest_asyncio(tmp_path: Path) -> None:
    """anyio's plugin is always installed: asyncgroup depends on anyio."""
    done = run_suite(tmp_path, WITHOUT_PYTEST_ASYNCIO, "-p", "no:asyncio")
    assert outcomes(done.stdout) == {
        "test_that_blocks": "ERROR",
        "test_unmarked": "ERROR",
        "test_virtual_unmarked": "ERROR",
        "test_with_anyio": "PASSED",
        "test_a_fixture_of_ones_own": "ERROR",
        "test_server": "PASSED",
    }, done.stdout
    message = (
        "it needs pytest-asyncio and @pytest.mark.asyncio, or @pytest.mark.anyio; kafka_server needs neither"
    )
    assert done.stdout.count(f"\nkafka_cluster runs on the test's event loop: {message}") == 3
    assert done.stdout.count(f"\nvirtual_kafka runs on the test's event loop: {message}") == 1
    assert "AssertionError" not in done.stdout


def test_a_missing_asyncio_marker(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "async def test_unmarked(kafka_cluster): ...\n")
    assert 'test_unmarked lacks @pytest.mark.asyncio (or asyncio_mode = "auto")' in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": "3"}, "nodes='3' is not allowed: a whole number, such as 1"),
        (
            {"initial_rebalance_delay": "3"},
            "initial_rebalance_delay='3' is not allowed: a number of seconds, such as 0",
        ),
        ({"auto_create_topics": "no"}, "auto_create_topics='no' is not allowed: True or False"),
        (
            {"max_virtual_time": "1 h"},
            "max_virtual_time='1 h' is not allowed: a number of seconds, more than 0",
        ),
        ({"max_virtual_time": -1}, "max_virtual_time=-1 is not allowed: a number of seconds, more than 0"),
        (
            {"topics": {"orders": "six"}},
            "partitions='six' is not allowed: a whole number, 1 or more, or None for the cluster's default (topic 'orders')",
        ),
        ({"topics": {"orders": 0}}, "partitions=0 is not allowed: a whole number, 1 or more, or None"),
        ({"topics": {"orders": True}}, "partitions=True is not allowed"),
        (
            {"topics": {"orders": {"configs": {"retention.ms": 3}}}},
            "configs={'retention.ms': 3} is not allowed: text",
        ),
        (
            {"topics": {"orders": {"configs": "compact"}}},
            "configs='compact' is not allowed: text by Kafka's names",
        ),
        ({"topics": ["orders", 3]}, "topics=['orders', 3] is not allowed: a name, a list of names"),
        ({"slow": 0.1}, "slow=0.1 is not allowed: seconds by node, such as {2: 0.1}"),
        ({"slow": {"1": 0.1}}, "slow={'1': 0.1} is not allowed: seconds by node, such as {2: 0.1}"),
        ({"slow": {1: "much"}}, "slow={1: 'much'} is not allowed: seconds by node, such as {2: 0.1}"),
        ({"faults": ["Fetch"]}, "faults=['Fetch'] is not allowed: a list such as [{'api': 'Fetch', "),
        ({"faults": 3}, "faults=3 is not allowed: a list such as"),
    ],
)
def test_option_values_of_a_wrong_type(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        MarkerOptions.parse(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "orders"}, "has no such option; did you mean topics?"),
        ({"node": 3}, "has no such option; did you mean nodes?"),
        ({"nodes": "3"}, "nodes='3' is not allowed: a whole number, such as 1"),
        ({"fsync": "no"}, "fsync='no' is not allowed: True or False"),
        ({"topics": {"orders": 0}}, "partitions=0 is not allowed: a whole number, 1 or more, or None"),
        ({"topics": {"orders": 0}}, "(topic 'orders')"),
    ],
)
@pytest.mark.parametrize(
    "made", [EmbeddedCluster, KafkaServer, lambda **options: MarkerOptions.parse(options)]
)
def test_mistakes_in_the_options_of_a_cluster(
    made: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        made(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"error": "NOT_LEADER"}, "error='NOT_LEADER' is not allowed"),
        ({"disconnect": "later"}, "disconnect='later' is not allowed"),
        ({"delay": -1}, "delay=-1 is not allowed"),
        ({"delay": "1"}, "delay='1' is not allowed: a number"),
        ({"throttle": "1"}, "throttle='1' is not allowed: a whole number"),
        ({"times": "2"}, "times='2' is not allowed: a whole number"),
        ({"nth": "first"}, "nth='first' is not allowed: a whole number"),
        ({"node": "1"}, "node='1' is not allowed: a whole number"),
    ],
)
def test_errors_of_faults_name_the_option(options: dict[str, object], message: str) -> None:
    with KafkaServer() as kafka, pytest.raises(ConfigError, match=re.escape(message)):
        kafka.faults.on("Fetch", **options)  # type: ignore[arg-type]


def test_a_servers_fault_has_no_methods_of_a_cluster_fault() -> None:
    with KafkaServer() as kafka:
        fault = kafka.faults.on("Fetch", optional=True)
        with pytest.raises(
            AttributeError, match=re.escape("created in one call: faults.on('Fetch', error=…)")
        ):
            fault.error("NOT_LEADER_OR_FOLLOWER")  # type: ignore[attr-defined]
        assert not hasattr(fault, "unheard_of")
        kafka.faults.clear()


def test_timeouts_of_waits_describe_what_was_expected() -> None:
    with KafkaServer() as kafka:
        fault = kafka.faults.on("Fetch", topic="orders")
        with pytest.raises(TimeoutError, match=r"0 of 2 hits in 0.01 s: <Fault on Fetch topic='orders'"):
            fault.wait_hit(2, timeout=0.01)
        fault.cancel()
        with pytest.raises(TimeoutError, match=r"0 of 1 exchanges of Produce with group='g' in 0.01 s"):
            kafka.history.wait_for("Produce", group="g", timeout=0.01)


def test_an_invalid_max_virtual_time(tmp_path: Path) -> None:
    tests = """
import pytest
@pytest.mark.asyncio
@pytest.mark.kafka(max_virtual_time="1 h")
async def test_it(virtual_kafka): ...
"""
    done = run_suite(tmp_path, tests)
    assert outcomes(done.stdout) == {"test_it": "ERROR"}
    assert "max_virtual_time='1 h' is not allowed" in done.stdout


def test_a_negative_history_limit() -> None:
    with pytest.raises(ConfigError, match="history_limit=-1 is not allowed: 0 or more"):
        EmbeddedCluster(history_limit=-1)


async def test_a_history_rejects_unknown_apis_and_errors() -> None:
    async with EmbeddedCluster() as cluster:
        with pytest.raises(UsageError, match="unknown API 'Produces'; the APIs are "):
            cluster.history.of("Produces")
        with pytest.raises(UsageError, match="unknown API 'Produces'"):
            await cluster.history.wait_for("Produces")
        with pytest.raises(
            ConfigError, match="error='NOT_LEADER' is not allowed: one of Kafka's error codes"
        ):
            cluster.history.of("Produce", error="NOT_LEADER")


async def test_a_history_finds_errors_by_code_and_by_name() -> None:
    from aiokafka import AIOKafkaConsumer

    async with EmbeddedCluster() as cluster:
        cluster.create_topic("orders")
        cluster.faults.on("Fetch", topic="orders").error("NOT_LEADER_OR_FOLLOWER")
        async with AIOKafkaConsumer("orders", bootstrap_servers=cluster.bootstrap_servers):
            await cluster.history.wait_for("Fetch", error="NOT_LEADER_OR_FOLLOWER")
        for error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, 6, "NOT_LEADER_OR_FOLLOWER"):
            assert len(cluster.history.of("Fetch", error=error)) == 1
