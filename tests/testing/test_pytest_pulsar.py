"""The pytest plugin's fixtures with an embedded Pulsar, in test suites of their own, as users have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.testing.kit.pulsar_options import PulsarMarkerOptions
from tests.testing.suites import run_suite
from tests.testing.test_pytest_plugin import outcomes

SUITE = """
import asyncio
import pytest
from asyncgroup.pulsar import PulsarClient, PulsarConsumerConfig
from asyncgroup.testing import VirtualTimeLoop
from asyncgroup.workqueue import DeadLetter, RetryTopic, WorkQueue

@pytest.mark.asyncio
@pytest.mark.pulsar(topics={"orders": {"partitions": 3, "messages": [b"a", ("k", "v")]}}, brokers=3)
class TestPulsar:
    async def test_as_the_marker_says(self, pulsar_cluster):
        assert pulsar_cluster.topic("orders").partitions == 3
        assert len(pulsar_cluster.messages("orders")) == 2
        assert len(pulsar_cluster.brokers) == 3

    @pytest.mark.pulsar(brokers=1, slow={1: 0.5}, faults=[{"api": "Send", "optional": True, "error": "ServiceNotReady"}])
    async def test_nearer_markers_win(self, pulsar_cluster):
        assert pulsar_cluster.brokers[1].delay == 0.5
        assert pulsar_cluster.topic("orders").partitions == 3

@pytest.mark.asyncio
@pytest.mark.pulsar(max_virtual_time=100_000, topics="orders")
async def test_virtual(virtual_pulsar):
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    async with PulsarClient(virtual_pulsar.service_url) as client:
        async with client.producer("orders") as producer:
            await producer.send(b"a", deliver_after=90_000)
        async with client.subscribe("orders", "s", type="shared", config=PulsarConsumerConfig(initial_position="earliest")) as consumer:
            receiving = asyncio.create_task(consumer.receive())
            await virtual_pulsar.advance(89_000)
            assert not receiving.done()
            assert (await receiving).value == b"a"
    assert len(virtual_pulsar.network.listeners()) == 1

@pytest.mark.pulsar(topics=["orders"], brokers=2)
def test_server(pulsar_server):
    pulsar_server.stop_broker(1)
    assert pulsar_server.topic("orders").brokers == (None,)

@pytest.mark.asyncio
@pytest.mark.kafka(topics="orders")
@pytest.mark.pulsar(topics="orders")
async def test_both(virtual_kafka, virtual_pulsar):
    assert virtual_kafka.topics == ["orders"]
    assert virtual_pulsar.topics == ["persistent://public/default/orders"]

@pytest.mark.asyncio
@pytest.mark.pulsar(topics={"orders": {"messages": ["a", "b"]}})
async def test_topics_for_copies(virtual_pulsar):
    async with WorkQueue(
        virtual_pulsar.service_url, "billing", "orders",
        retry=RetryTopic(), dead_letter=DeadLetter(1), initial_position="earliest",
    ) as queue:
        delivery = await queue.receive()
        await delivery.reject("no")
        delivery = await queue.receive()
        await delivery.reconsume_later(0)
    assert [message.value for message in virtual_pulsar.messages("orders-billing-DLQ")] == [b"a"]

@pytest.mark.asyncio
@pytest.mark.pulsar(topics={"orders": 6})
async def test_unknown(virtual_pulsar):
    async with PulsarClient(virtual_pulsar.service_url) as client, client.producer("ordres") as producer:
        await producer.send(b"x")

@pytest.mark.pulsar(topics=["orders"])
def test_unknown_server(pulsar_server):
    async def ask():
        async with PulsarClient(pulsar_server.service_url) as client, client.producer("bills"):
            pass
    asyncio.run(ask())

@pytest.mark.asyncio
@pytest.mark.pulsar(unknown_topics=True)
async def test_unknown_is_allowed(virtual_pulsar):
    async with PulsarClient(virtual_pulsar.service_url) as client:
        with pytest.raises(Exception, match="TopicNotFound"):
            async with client.producer("ordres"):
                pass

@pytest.mark.asyncio
@pytest.mark.pulsar(auto_create_topics=True)
async def test_topics_are_created(virtual_pulsar):
    async with PulsarClient(virtual_pulsar.service_url) as client, client.producer("ordres") as producer:
        await producer.send(b"x")

@pytest.mark.pulsar(faults={"api": "Send", "delay": 1.0})
def test_unused_fault(pulsar_server):
    pass

@pytest.mark.asyncio
@pytest.mark.pulsar(topics="orders", faults={"api": "Send", "delay": 1.0})
async def test_own_failure(pulsar_cluster):
    async with PulsarClient(pulsar_cluster.service_url) as client, client.subscribe("orders", "billing"):
        assert pulsar_cluster.subscription("orders", "billing").backlog == 2

@pytest.mark.pulsar(topicks="orders")
def test_misspelt(pulsar_server):
    pass

@pytest.mark.pulsar(topics={"x/y/z": 1})
def test_refused_topic(pulsar_server):
    pass

@pytest.mark.pulsar("orders")
def test_positional(pulsar_server):
    pass

def test_that_blocks(pulsar_cluster):
    pass
"""

PASSED = [
    *("test_as_the_marker_says", "test_nearer_markers_win", "test_virtual", "test_server", "test_both"),
    *("test_topics_for_copies", "test_unknown_is_allowed", "test_topics_are_created"),
]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_suite(tmp_path_factory.mktemp("pulsar"), SUITE).stdout


def test_the_fixtures(output: str) -> None:
    found = {name.rpartition("::")[2]: outcome for name, outcome in outcomes(output).items()}
    assert {name: found.get(name) for name in PASSED} == dict.fromkeys(PASSED, "PASSED"), output


def test_an_unknown_topic_fails_the_test_with_the_line_to_add(output: str) -> None:
    assert outcomes(output)["test_unknown"] == "FAILED"
    assert (
        "a client requests topic 'ordres', which does not exist. If the name is right, create it: "
        "@pytest.mark.pulsar(topics={'orders': 6, 'ordres': 0})"
    ) in output


def test_the_error_of_a_client_is_reported_with_the_line_to_add(output: str) -> None:
    assert outcomes(output)["test_unknown_server"] == "FAILED"
    report = output.partition("_ test_unknown_server _")[2].partition("\n___")[0]
    assert "TopicNotFound" in report.partition("- Unknown topic -")[0]
    assert (
        "create it: @pytest.mark.pulsar(topics=['orders', 'bills'])"
        in report.partition("- Unknown topic -")[2]
    )
    assert output.count("- Unknown topic -") == 1, "not where it is the error itself"


def test_a_tests_own_failure_is_reported_with_the_requests(output: str) -> None:
    assert outcomes(output)["test_own_failure"] == "FAILED"
    report = output.partition("- Pulsar -")[2]
    assert "subscription billing of persistent://public/default/orders: Exclusive, backlog 0, " in output
    assert re.search(r"broker 1  .*  Subscribe of billing, orders: ok after", output), report


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_unused_fault", "1 fault(s) were never hit: <Fault on Send nth=1"),
        ("test_misspelt", "@pytest.mark.pulsar has no such option; did you mean topics?"),
        ("test_refused_topic", "ServerFailure: TopicNotFound: Namespace not found: x/y"),
        ("test_positional", "@pytest.mark.pulsar takes keywords only, not ('orders',)"),
        ("test_that_blocks", "this test is not async; use pulsar_server for blocking tests"),
    ],
)
def test_mistakes_are_reported_without_a_traceback(output: str, name: str, message: str) -> None:
    assert outcomes(output)[name] == "ERROR"
    assert message in output
    assert "During handling of" not in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"broker": 3}, "@pytest.mark.pulsar has no such option; did you mean brokers?"),
        ({"nodes": 3}, "@pytest.mark.pulsar has no such option; did you mean brokers?"),
        ({"max_virtual_time": "1 h"}, "max_virtual_time='1 h' is not allowed: a number of seconds"),
        ({"unknown_topics": 1}, "unknown_topics=1 is not allowed: True or False"),
        ({"slow": 0.1}, "slow=0.1 is not allowed: seconds by broker, such as {2: 0.1}"),
        ({"faults": ["Send"]}, "faults=['Send'] is not allowed: a list such as [{'api': 'Send', "),
        ({"topics": 7}, "topics=7 is not allowed: a name, a list of names"),
    ],
)
def test_option_values_of_a_wrong_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        PulsarMarkerOptions.parse(options)


@pytest.mark.full
def test_a_session_shares_a_server(tmp_path: Path) -> None:
    conftest = """
import pytest
@pytest.fixture(scope="session")
def pulsar_session_options():
    return {"topics": {"orders": 2}, "brokers": 2}
"""
    tests = """
import pytest
@pytest.mark.parametrize("number", [0, 1])
def test_blocking(session_pulsar_server, number):
    session_pulsar_server.produce("orders", b"x")
    assert len(session_pulsar_server.messages("orders")) == number + 1
def test_fails(session_pulsar_server):
    assert session_pulsar_server.topics == ["x"]
"""
    done = run_suite(tmp_path, tests, conftest=conftest)
    expected = {"test_blocking[0]": "PASSED", "test_blocking[1]": "PASSED", "test_fails": "FAILED"}
    assert outcomes(done.stdout) == expected, done.stdout
    assert "- Pulsar -" in done.stdout


@pytest.mark.full
def test_without_an_async_plugin(tmp_path: Path) -> None:
    tests = "def test_server(pulsar_server): ...\ndef test_virtual(virtual_pulsar): ...\n"
    done = run_suite(tmp_path, tests, "-p", "no:asyncio", "-p", "no:anyio")
    assert outcomes(done.stdout) == {"test_server": "PASSED", "test_virtual": "ERROR"}
    assert "@pytest.mark.anyio; pulsar_server needs neither" in done.stdout
