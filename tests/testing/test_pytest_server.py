"""`KafkaServer`: the embedded cluster in a thread, for blocking code."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from asyncgroup.broker import Refused, UnusedFaults
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.testing import KafkaServer
from asyncgroup.wire import messages as m
from tests.broker.internals import controller_of


def produce(
    kafka: KafkaServer, *values: bytes, topic: str = "orders", **config: object
) -> list[KafkaError | None]:
    """Send records with librdkafka, and return the error (or None) of each in the order of `values`."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **config})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors


def test_a_blocking_client() -> None:
    with KafkaServer(nodes=3) as kafka:
        kafka.create_topic("orders", 2, configs={"cleanup.policy": "delete"})
        assert produce(kafka, b"a", b"b") == [None, None]
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        values = {message.value() for message in consumer.consume(2, timeout=30)}
        consumer.commit(asynchronous=False)
        assert values == {record.value for record in kafka.records("orders")} == {b"a", b"b"}
        view = kafka.group("g")
        assert (kafka.groups, view.state, len(view.members)) == (["g"], "Stable", 1)
        assert sum(committed.offset for committed in view.offsets.values()) == 2
        consumer.close()
        assert len(kafka.history.wait_for("LeaveGroup", group="g", answered=True)) == 1


def test_nodes_leaders_and_topics() -> None:
    with KafkaServer(nodes=2) as kafka:
        kafka.create_topic("t", 1)
        kafka.move_leader("t", 0, 1)
        kafka.move_coordinator("g", 1)
        kafka.slow_node(2, 0.01)
        kafka.stop_node(1)
        assert (kafka.leader("t", 0), kafka.coordinator("g")) == (2, 2)
        kafka.start_node(1)
        kafka.create_partitions("t", 3)
        assert kafka.leader("t", 2) in {1, 2}
        kafka.delete_topic("t")
        assert "t" not in kafka.call(lambda cluster: controller_of(cluster).topics)
        with pytest.raises(Refused):
            kafka.create_topic("b@d")


def test_it_starts_and_stops_quickly() -> None:
    """It waits for nothing: on a busy machine only its use of the processor is limited as on an idle one."""
    with KafkaServer():  # imports on first use do not count
        pass
    best = used = 10.0
    for _ in range(20):
        if best < 0.05:
            break
        begun, used_before = time.perf_counter(), time.process_time()
        with KafkaServer(nodes=3) as kafka:
            best = min(best, time.perf_counter() - begun)
            used = min(used, time.process_time() - used_before)
    assert used < 0.05
    assert best < 1.0
    assert not any(thread.name == "kafka-server" for thread in threading.enumerate())
    with pytest.raises(ClosedError):
        _ = kafka.bootstrap_servers


def test_faults_for_a_client_in_another_thread() -> None:
    with KafkaServer() as kafka:
        kafka.create_topic("orders")
        seen: list[str] = []
        refused = kafka.faults.on("Produce", topic="orders", error="TOPIC_AUTHORIZATION_FAILED")
        kafka.faults.on("Produce", times=None, observe=lambda exchange: seen.append(exchange.client_id))
        errors = produce(kafka, b"a", **{"client.id": "billing"})
        assert [error and error.code() for error in errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        assert (refused.hits, seen) == (1, ["billing"])
        assert kafka.faults.unused == []
        assert kafka.history.of("Produce", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert "TOPIC_AUTHORIZATION_FAILED" in kafka.history.story()
        kafka.history.clear()
        assert kafka.history.of() == []


def test_a_held_request_waits_until_release() -> None:
    with KafkaServer() as kafka, ThreadPoolExecutor(1) as pool:
        kafka.create_topic("orders")
        held = kafka.faults.on("Produce", hold=True)
        sending = pool.submit(produce, kafka, b"a")
        held.wait_hit()
        assert kafka.records("orders") == []
        held.release()
        assert sending.result(30) == [None]
        assert len(kafka.records("orders")) == 1


def test_the_other_fault_actions() -> None:
    with KafkaServer() as kafka:
        kafka.create_topic("orders")
        kafka.faults.on("Metadata", mutate=lambda response: response.brokers.reverse())
        kafka.faults.on("Produce", where=lambda request: request.acks == -1, disconnect="mid-frame")
        kafka.faults.on("Produce", nth=2, delay=0.01, throttle=1)
        assert produce(kafka, b"a") == [None]
        assert [record.value for record in kafka.records("orders")] == [b"a", b"a"]  # librdkafka has retried
        kafka.faults.on("Fetch", drop=True).cancel()
        kafka.faults.on("Fetch", answer=lambda _: m.FetchResponse(), optional=True)
        kafka.faults.on("Heartbeat")
        kafka.faults.clear()


def test_unused_faults_are_an_error_unless_the_block_has_failed() -> None:
    with pytest.raises(UnusedFaults, match="Fetch"), KafkaServer() as kafka:
        kafka.faults.on("Fetch", drop=True)
    with pytest.raises(KeyError, match="own"), KafkaServer() as kafka:
        kafka.faults.on("Fetch", drop=True)
        raise KeyError("own")
    with KafkaServer() as kafka:
        kafka.faults.on("Fetch", drop=True)
        kafka.ignore_unused_faults()


def test_waits_time_out() -> None:
    with KafkaServer() as kafka:
        with pytest.raises(TimeoutError):
            kafka.history.wait_for("Fetch", timeout=0.01)
        with pytest.raises(TimeoutError):
            kafka.faults.on("Fetch", optional=True).wait_hit(timeout=0.01)


def test_advance_sets_the_brokers_clock_forward() -> None:
    """A consumer that has stopped sending heartbeats expires when its session timeout has passed."""
    with KafkaServer() as kafka:
        kafka.create_topic("orders")
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
        consumer.subscribe(["orders"])
        while kafka.group("g").state != "Stable":
            consumer.poll(0.02)
        before = kafka.call(lambda _: asyncio.get_running_loop().time())
        kafka.advance(3600)
        kafka.call(lambda _: None)
        after = kafka.call(lambda _: asyncio.get_running_loop().time())
        assert after - before >= 3600
        assert kafka.group("g").state == "Empty"
        with pytest.raises(ConfigError):
            kafka.advance(-1)
        consumer.close()


def test_a_failed_start_raises_its_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"), KafkaServer(ports=[taken.getsockname()[1]]):
            pass
    assert not any(thread.name == "kafka-server" for thread in threading.enumerate())
    with pytest.raises(ConfigError):
        KafkaServer(nodes=0)


class Interrupted(Future[None]):
    """A future whose `result` is interrupted by Ctrl-C."""

    def result(self, timeout: float | None = None) -> None:
        super().result(timeout)
        raise KeyboardInterrupt


def test_an_interrupted_start_leaves_no_thread() -> None:
    kafka = KafkaServer()
    kafka._thread._started = Interrupted()
    with pytest.raises(KeyboardInterrupt), kafka:
        pass
    assert not kafka._thread._thread.is_alive()
    assert not any(node.running for node in kafka._thread.cluster.nodes.values())


def test_a_call_is_cancelled_after_its_timeout() -> None:
    outcome: Future[str] = Future()

    async def never_ends(_: object) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            outcome.set_result("cancelled")
            raise

    with KafkaServer() as kafka:
        with pytest.raises(TimeoutError):
            kafka.call(never_ends, timeout=0.01)
        assert outcome.result(10) == "cancelled"


def test_a_pending_call_fails_when_the_server_stops() -> None:
    waits = threading.Event()

    async def never_ends(_: object) -> None:
        waits.set()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor() as threads:
        with KafkaServer() as kafka:
            call = threads.submit(kafka.call, never_ends)
            assert waits.wait(60)
        with pytest.raises(ClosedError, match="was stopped"):
            call.result(10)


def test_no_call_hangs_when_the_server_stops() -> None:
    def call_repeatedly(kafka: KafkaServer) -> None:
        with pytest.raises(ClosedError):
            while True:
                assert kafka.groups == []

    with ThreadPoolExecutor(4) as threads:
        with KafkaServer() as kafka:
            calls = [threads.submit(call_repeatedly, kafka) for _ in range(4)]
            kafka.call(lambda _: asyncio.sleep(0.1))
        for call in calls:
            call.result(10)


def test_usage_errors() -> None:
    kafka = KafkaServer()
    assert "not started" in repr(kafka)
    with pytest.raises(ClosedError):
        kafka.create_topic("t")
    with kafka:
        assert "running" in repr(kafka)
        with pytest.raises(UsageError, match="own thread"):
            kafka.call(lambda _: kafka.groups)
        with pytest.raises(UsageError, match="only once"), kafka:
            pass
        with pytest.raises(ConfigError, match="errror"):
            kafka.faults.on("Fetch", errror=1)  # type: ignore[call-arg]
        with pytest.raises(ConfigError):
            kafka.faults.on("Fetch", error="NO_SUCH_ERROR")
    assert "ended" in repr(kafka)
