"""Topics of the pytest fixtures (seeded, unknown, shared by a session), and the report of a failed test."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup import ConfigError, Consumer, ConsumerConfig, UsageError
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.traffic.folding import fold_repeats
from asyncgroup.testing import KafkaServer
from asyncgroup.testing.kit.fixtures import kafka_cluster, virtual_kafka
from tests.testing.suites import run_suite
from tests.testing.test_pytest_plugin import outcomes

SUITE = """
import asyncio
import time
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from asyncgroup import Consumer, ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.workqueue import DeadLetter, RetryTopic, WorkQueue

@pytest.mark.asyncio
@pytest.mark.kafka(topics={"orders": {"partitions": 2, "records": [b"a", ("k", "v")]}})
async def test_seeded(kafka_cluster):
    assert len(kafka_cluster.records("orders")) == 2
    kafka_cluster.produce("orders", "c", partition=1)
    kafka_cluster.commit("g", {("orders", 1): 1})

@pytest.mark.kafka(topics={"orders": {"records": [b"a"]}})
def test_seeded_server(kafka_server):
    assert kafka_server.produce("orders", b"b")[0].offset == 1
    kafka_server.commit("g", {("orders", 0): 1})
    assert [each.offset for each in kafka_server.group("g").offsets.values()] == [1]

@pytest.mark.asyncio
@pytest.mark.kafka(topics="orders")
async def test_unknown_aiokafka(kafka_cluster):
    async with AIOKafkaProducer(bootstrap_servers=kafka_cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("ordres", b"x")

@pytest.mark.asyncio
@pytest.mark.kafka(topics={"orders": 6})
async def test_unknown_virtual(virtual_kafka):
    async with Producer(virtual_kafka.bootstrap_servers) as producer:
        await producer.send("ordres", b"x")

@pytest.mark.kafka()
def test_unknown_server(kafka_server):
    async def ask():
        async with Producer(kafka_server.bootstrap_servers) as producer:
            await producer.send("ordres", b"x")
    with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
        asyncio.run(ask())

@pytest.mark.asyncio
@pytest.mark.kafka(unknown_topics=True)
async def test_unknown_is_allowed(virtual_kafka):
    async with Producer(virtual_kafka.bootstrap_servers) as producer:
        with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
            await producer.send("ordres", b"x")

@pytest.mark.asyncio
@pytest.mark.kafka(topics="orders")
async def test_unknown_without_creation(virtual_kafka):
    config = ConsumerConfig(allow_auto_topic_creation=False)
    async with ConsumerGroup(virtual_kafka.bootstrap_servers, "g", config) as group:
        async for _ in group.records("bills"):
            pass

@pytest.mark.asyncio
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.kafka(topics={"orders": {"records": ["a", "b"]}})
async def test_queue(virtual_kafka, refused):
    if refused:
        virtual_kafka.faults.on("CreateTopics", times=None).error("TOPIC_AUTHORIZATION_FAILED")
    for number in range(3):
        async with WorkQueue(
            virtual_kafka.bootstrap_servers,
            "billing-us-east",
            "orders",
            retry=RetryTopic(),
            dead_letter=DeadLetter(1),
            initial_position="earliest",
        ) as queue:
            delivery = await queue.receive()
            if refused:
                await virtual_kafka.advance(70)
                return
            await delivery.reject("no") if number else await delivery.reconsume_later(0)

@pytest.mark.asyncio
@pytest.mark.kafka(topics="orders")
async def test_deleted_is_allowed(virtual_kafka):
    virtual_kafka.delete_topic("orders")
    async with Producer(virtual_kafka.bootstrap_servers) as producer:
        with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
            await producer.send("orders", b"x")

@pytest.mark.kafka(topics="orders", faults={"api": "Fetch", "error": "NOT_LEADER_OR_FOLLOWER"})
def test_fetch_fault(kafka_server): ...

@pytest.mark.asyncio
@pytest.mark.kafka(topics="orders", nodes=1)
async def test_story(virtual_kafka):
    async with Consumer(virtual_kafka.bootstrap_servers, ConsumerConfig(client_id="me")) as consumer:
        await consumer.partition("orders", 0, 0)
        await asyncio.sleep(600)
        assert False
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_suite(tmp_path_factory.mktemp("topics"), SUITE, "--durations=0", "--durations-min=0").stdout


@pytest.mark.full
def test_topics_are_seeded_for_each_fixture(output: str) -> None:
    assert outcomes(output)["test_seeded"] == outcomes(output)["test_seeded_server"] == "PASSED", output
    with KafkaServer(topics={"orders": {"records": [b"a"]}}) as server:
        assert [record.value for record in server.records("orders")] == [b"a"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("test_unknown_aiokafka", "@pytest.mark.kafka(topics=['orders', 'ordres'])"),
        ("test_unknown_virtual", "@pytest.mark.kafka(topics={'orders': 6, 'ordres': 1})"),
        ("test_unknown_server", "@pytest.mark.kafka(topics='ordres')"),
    ],
)
def test_an_unknown_topic_fails_the_test_with_the_line_to_add(output: str, name: str, line: str) -> None:
    assert outcomes(output)[name] == "FAILED"
    assert (
        f"a client requests topic 'ordres', which does not exist. If the name is right, create it: {line}"
        in output
    )


def test_an_unknown_topic_fails_an_async_test_at_once(output: str) -> None:
    """Without the cancellation aiokafka would request the topic's metadata for 40 s."""
    (seconds,) = re.findall(r"([\d.]+)s call\s+\S+::test_unknown_aiokafka", output)
    assert float(seconds) < 10


def test_unknown_topics_are_allowed_by_option_and_after_deletion(output: str) -> None:
    assert outcomes(output)["test_unknown_is_allowed"] == "PASSED", output
    assert outcomes(output)["test_deleted_is_allowed"] == "PASSED", output


def test_a_client_that_needs_an_unknown_topic_fails_the_test_also_without_creation(output: str) -> None:
    assert outcomes(output)["test_unknown_without_creation"] == "FAILED", output
    assert "a client requests topic 'bills', which does not exist" in output


def test_the_copy_topics_of_a_queue_fail_no_test(output: str) -> None:
    """A queue looks whether they exist, and whether topics exist that would share them, before it creates them."""
    assert outcomes(output)["test_queue[False]"] == outcomes(output)["test_queue[True]"] == "PASSED", output


def test_a_fetch_fault_without_a_topic_accepts_only_top_level_errors(output: str) -> None:
    assert outcomes(output)["test_fetch_fault"] == "ERROR"
    assert "error='NOT_LEADER_OR_FOLLOWER' is not allowed: only with topic=…" in output
    with KafkaServer(topics="orders") as server:
        with pytest.raises(ConfigError, match="only with topic=…"):
            server.faults.on("Fetch", error="OFFSET_OUT_OF_RANGE")
        server.faults.on("Fetch", error="FETCH_SESSION_ID_NOT_FOUND", optional=True)
        server.faults.on("Fetch", topic="orders", error="OFFSET_OUT_OF_RANGE", optional=True)


def test_the_report_folds_repeated_requests_and_names_topics(output: str) -> None:
    story = output.partition("test_story")[2].partition("- Kafka -")[2]
    assert "Fetch v" in story
    assert " of orders: ok" in story
    assert re.search(r"… (this line|these \d lines) \d{3,} times in all, until 599\.5", story), story


def test_alternating_lines_are_folded() -> None:
    keys = [*"a", *"bc" * 5, *"d", *"ee", *"fff"]
    times = [str(number) for number in range(len(keys))]
    lines = [f"{key}{time}" for key, time in zip(keys, times, strict=True)]
    assert fold_repeats(lines, keys, times) == [
        "a0",
        *("b1", "c2", "            … these 2 lines 5 times in all, until 10"),
        "d11",
        *("e12", "e13"),
        *("f14", "            … this line 3 times in all, until 16"),
    ]
    assert fold_repeats([], [], []) == []


def test_a_session_shares_a_server(tmp_path: Path) -> None:
    conftest = """
import pytest
@pytest.fixture(scope="session")
def kafka_session_options():
    return {"topics": {"orders": 2}, "nodes": 2}
"""
    tests = """
import pytest
from asyncgroup import Producer
seen = []
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.asyncio
async def test_async(session_kafka_server, number):
    seen.append(session_kafka_server.bootstrap_servers)
    async with Producer(session_kafka_server.bootstrap_servers) as producer:
        await producer.send("orders", b"x", partition=0)
    assert len(session_kafka_server.records("orders")) == number + 1

def test_blocking(session_kafka_server):
    assert {*seen} == {session_kafka_server.bootstrap_servers}
    session_kafka_server.create_topic("mine")

def test_fails(session_kafka_server):
    assert session_kafka_server.groups == ["x"]
"""
    done = run_suite(tmp_path, tests, conftest=conftest)
    assert outcomes(done.stdout) == {
        "test_async[0]": "PASSED",
        "test_async[1]": "PASSED",
        "test_blocking": "PASSED",
        "test_fails": "FAILED",
    }, done.stdout
    assert "- Kafka -" in done.stdout


@pytest.mark.parametrize("fixture", [kafka_cluster, virtual_kafka])
def test_trio_is_rejected(fixture: Any) -> None:
    """Step the fixture without an asyncio event loop, as trio would."""
    request = SimpleNamespace(fixturename=fixture.__name__)
    with pytest.raises(
        pytest.fail.Exception,
        match=r"runs on asyncio, and this test on trio; use kafka_server, which runs in",
    ):
        fixture(request).__anext__().send(None)
    with pytest.raises(UsageError, match=r"asyncgroup\.testing\.KafkaServer runs one in a thread"):
        EmbeddedCluster().__aenter__().send(None)


def test_the_trio_marker_is_rejected(tmp_path: Path) -> None:
    tests = """
import pytest
@pytest.mark.trio
async def test_it(kafka_cluster): ...
"""
    ini = "asyncio_default_fixture_loop_scope = function\nmarkers = trio\n"
    done = run_suite(tmp_path, tests, ini=ini)
    assert outcomes(done.stdout)["test_it"] in {"ERROR", "FAILED"}, done.stdout
    assert "kafka_cluster runs on asyncio, and this test on trio" in done.stdout, done.stdout


@pytest.mark.virtual
async def test_an_embedded_cluster_without_fixture_allows_unknown_topics() -> None:
    async with (
        EmbeddedCluster() as cluster,
        Consumer(cluster.bootstrap_servers, ConsumerConfig()) as consumer,
    ):
        with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
            await consumer.partitions("nowhere")
        await asyncio.sleep(0)
