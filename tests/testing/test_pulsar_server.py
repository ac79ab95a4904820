"""`PulsarServer`: the embedded Pulsar in a thread, for blocking code such as pulsar-client."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pulsar
import pytest

from asyncgroup.broker import UnusedFaults
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.pulsar_broker import ServerFailure
from asyncgroup.testing import PulsarServer

EARLIEST = pulsar.InitialPosition.Earliest


def client_of(server: PulsarServer) -> Any:
    """Return a client that is closed at the end of a block."""
    return closing(pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)))


def test_a_blocking_client() -> None:
    with PulsarServer(2, topics={"orders": 2}) as server, client_of(server) as client:
        producer = client.create_producer("orders")
        for value in (b"a", b"b"):
            producer.send(value, partition_key="k")
        server.produce("orders", ("k", "c"))
        consumer = client.subscribe("orders", "billing", initial_position=EARLIEST)
        found = [consumer.receive(10_000) for _ in range(3)]
        assert [message.data() for message in found] == [b"a", b"b", b"c"]
        assert [message.value for message in server.messages("orders")] == [b"a", b"b", b"c"]
        for message in found:
            consumer.acknowledge(message)
        server.history.wait_for("Ack", subscription="billing")
        assert server.subscription("orders", "billing").type == "Exclusive"
        assert server.topic("orders").partitions == 2
        consumer.close()
        assert len(server.history.of("CloseConsumer", topic="orders")) == 2


def test_brokers_and_topics() -> None:
    with PulsarServer(2) as server:
        server.create_topic("t", 1)
        server.update_partitions("t", 3)
        server.create_subscription("t", "s", position="earliest")
        server.unload("t", to=2)
        server.slow_broker(2, 0.01)
        server.stop_broker(1)
        assert [broker.running for broker in server.brokers.values()] == [False, True]
        server.start_broker(1)
        server.restart_broker(1)
        server.cut(1)
        server.terminate("t")
        assert server.topic("t").terminated
        with pytest.raises(ServerFailure, match="TopicTerminatedError"):
            server.produce("t", "a")
        server.delete_topic("t")
        assert server.topics == []
        with pytest.raises(UsageError, match="no admin API"):
            _ = server.admin_url
    assert not any(thread.name == "pulsar-server" for thread in threading.enumerate())
    with pytest.raises(ClosedError, match="the PulsarServer is not running"):
        _ = server.service_url


def test_faults_for_a_client_in_another_thread() -> None:
    with PulsarServer(topics="orders") as server, client_of(server) as client, ThreadPoolExecutor(1) as pool:
        seen: list[str] = []
        refused = server.faults.on("Producer", topic="orders", error="ServiceNotReady")
        server.faults.on("Send", times=None, observe=lambda exchange: seen.append(exchange.api))
        producer = client.create_producer("orders")
        held = server.faults.on("Send", hold=True)
        sending = pool.submit(producer.send, b"a")
        held.wait_hit()
        assert server.messages("orders") == []
        held.release()
        sending.result(30)
        assert (refused.hits, seen) == (1, ["Send"])
        assert server.faults.unused == []
        assert "ServiceNotReady" in server.history.story()
        with pytest.raises(
            AttributeError,
            match=re.escape("a PulsarServer's fault is created in one call: faults.on('Send', error=…)"),
        ):
            held.error("ServiceNotReady")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"error": "NotReady"}, "error='NotReady' is not allowed"),
        ({"errror": 1}, "errror=1 is not allowed: a fault's options are broker, topic, subscription"),
        ({"group": "g"}, "group='g' is not allowed: a fault's options are broker, topic, subscription"),
        ({"disconnect": "later"}, "disconnect='later' is not allowed"),
        ({"delay": "1"}, "delay='1' is not allowed: a number"),
        ({"broker": "1"}, "broker='1' is not allowed: a whole number"),
    ],
)
def test_errors_of_faults_name_the_option(options: dict[str, Any], message: str) -> None:
    with PulsarServer() as server, pytest.raises(ConfigError, match=re.escape(message)):
        server.faults.on("Send", **options)


def test_unused_faults_are_an_error_unless_the_block_has_failed() -> None:
    with pytest.raises(UnusedFaults, match="Send"), PulsarServer() as server:
        server.faults.on("Send", drop=True)
    with pytest.raises(KeyError, match="own"), PulsarServer() as server:
        server.faults.on("Send", drop=True)
        raise KeyError("own")
    with PulsarServer() as server, pytest.raises(TimeoutError, match=r"0 of 1 exchanges of Send in 0\.01 s"):
        server.history.wait_for("Send", timeout=0.01)


def test_advance_sets_the_brokers_clock_forward() -> None:
    """A delayed message is delivered when the brokers' time has come; the client has another one."""
    with PulsarServer(topics="t") as server, client_of(server) as client:
        consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
        client.create_producer("t").send(b"a", deliver_at=int(time.time() * 1000) + 3_600_000)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(50)
        server.advance(3700)
        assert consumer.receive(10_000).data() == b"a"
        with pytest.raises(ConfigError):
            server.advance(-1)


def test_usage_errors() -> None:
    server = PulsarServer()
    assert "not started" in repr(server)
    with pytest.raises(ClosedError):
        server.create_topic("t")
    with server:
        assert "running" in repr(server)
        with pytest.raises(UsageError, match="the PulsarServer's own thread"):
            server.call(lambda _: server.topics)
        with pytest.raises(UsageError, match="a PulsarServer can be entered only once"), server:
            pass
    assert "ended" in repr(server)
