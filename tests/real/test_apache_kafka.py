"""ApacheKafka, the helper that starts a real Kafka, tested with another client."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from asyncgroup.errors import UsageError
from asyncgroup.testing.apache_kafka import ApacheKafka, KafkaStartError, KafkaToolError
from asyncgroup.testing.apache_kafka.node import PortInUse
from asyncgroup.testing.apache_kafka.probe import ProbeResult, probe
from asyncgroup.testing.java_server.starting import time_limit
from tests.real.support import RunningKafka

pytestmark = pytest.mark.usefixtures("kafka_at_hand")


def probe_node(kafka: RunningKafka, node: int = 0, limit: float = 5.0) -> ProbeResult:
    host, _, port = kafka.bootstrap_servers.split(",")[node].rpartition(":")
    return probe(host, int(port), limit)


def create_topic(kafka: RunningKafka, name: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, replicas)])[name].result(30)


def produce(kafka: RunningKafka, topic: str, count: int) -> list[bytes]:
    """Produce `count` records, and return their values after the broker has acknowledged them."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    values = [b"%d" % number for number in range(count)]
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failures == []
    return values


def consume(kafka: RunningKafka, topic: str, count: int) -> list[bytes]:
    """Return the first `count` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[bytes] = []
        while len(values) < count:
            messages = consumer.consume(count - len(values), timeout=30)
            assert messages, f"no more than {len(values)} of {count} records within 30 s"
            for message in messages:
                assert message.error() is None, message.error()
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a process whose parent has ended may stay a zombie if no other process reaps it
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_one_node_answers(apache_kafka: RunningKafka) -> None:
    assert probe_node(apache_kafka).node_ids


def test_three_nodes_list_each_other(apache_kafka_3: ApacheKafka) -> None:
    expected = ProbeResult(apache_kafka_3.cluster_id, frozenset({1, 2, 3}))
    for node in range(3):
        with time_limit(30) as expired:
            # a node that another test has suspended is fenced for a moment after it goes on
            while (answer := probe_node(apache_kafka_3, node)) != expected:
                assert not expired.wait(0.1), f"node {node + 1}: {answer}"


@pytest.mark.full
def test_a_killed_node_comes_back_with_its_data(kafka_to_break: ApacheKafka) -> None:
    create_topic(kafka_to_break, "kept")
    values = produce(kafka_to_break, "kept", 1000)
    address = kafka_to_break.address(1)
    kafka_to_break.kill(1)
    assert kafka_to_break.pid(1) is None
    with pytest.raises(ConnectionRefusedError):
        probe_node(kafka_to_break)
    kafka_to_break.start_node(1)
    assert kafka_to_break.address(1) == address
    assert consume(kafka_to_break, "kept", 1000) == values


def test_a_cluster_works_without_one_of_its_nodes(apache_kafka_3: ApacheKafka) -> None:
    create_topic(apache_kafka_3, "replicated", replicas=3)
    values = produce(apache_kafka_3, "replicated", 100)
    apache_kafka_3.kill(1)
    try:
        assert consume(apache_kafka_3, "replicated", 100) == values
    finally:
        apache_kafka_3.start_node(1)
    assert probe_node(apache_kafka_3, node=0).node_ids == {1, 2, 3}


def test_two_clusters_run_at_the_same_time(kafka_to_break: ApacheKafka, apache_kafka: RunningKafka) -> None:
    create_topic(kafka_to_break, "mine")
    assert probe_node(kafka_to_break).cluster_id != probe_node(apache_kafka).cluster_id
    topics = AdminClient({"bootstrap.servers": apache_kafka.bootstrap_servers}).list_topics(timeout=10).topics
    assert "mine" not in topics


def test_a_suspended_node_accepts_connections_and_does_not_answer(kafka_to_break: ApacheKafka) -> None:
    kafka_to_break.suspend(1)
    try:
        with pytest.raises(TimeoutError):
            probe_node(kafka_to_break, limit=0.3)
    finally:
        kafka_to_break.resume(1)
    assert probe_node(kafka_to_break).cluster_id == kafka_to_break.cluster_id


def test_kafkas_own_tools_run(kafka_to_break: ApacheKafka) -> None:
    create_topic(kafka_to_break, "measured")
    produce(kafka_to_break, "measured", 7)
    tool, servers = "org.apache.kafka.tools.GetOffsetShell", kafka_to_break.bootstrap_servers
    assert (
        kafka_to_break.run_tool(tool, "--bootstrap-server", servers, "--topic", "measured")
        == "measured:0:7\n"
    )
    with pytest.raises(KafkaToolError, match="ended with exit code 1"):
        kafka_to_break.run_tool(tool, "--bootstrap-server", servers, "--topic", "absent")


def test_a_failed_start_reports_the_reason_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kafka = ApacheKafka(properties={"num.network.threads": 0})
    with pytest.raises(KafkaStartError, match=r"num\.network\.threads"):
        kafka.start()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="not running"):
        kafka.pid(1)


def test_a_start_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KafkaStartError, match=r"was not formatted after 0\.05 s"):
        ApacheKafka(start_timeout=0.05).start()
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_on_the_port_is_not_taken_for_the_node(kafka_to_break: ApacheKafka) -> None:
    """The started process ends, and the other one's answer on the port is not taken for its answer."""
    cluster = kafka_to_break._started()
    node = cluster.nodes[1]
    twin = type(node)(2, node.port, node.directory / "twin", cluster._watchdog)
    text = node.properties.read_text().replace(f"log.dirs={node.data}", f"log.dirs={twin.data}")
    twin.properties.write_text(text)
    (twin.data / "meta.properties").write_text((node.data / "meta.properties").read_text())
    twin.start([*cluster._java_for(twin), "kafka.Kafka", str(twin.properties)])
    try:
        with time_limit(30) as expired, pytest.raises(PortInUse, match="Address already in use"):
            while not expired.wait(0.1):
                twin.check()
    finally:
        twin.kill()


async def test_async_with(kafka_at_hand: None) -> None:
    async with ApacheKafka() as kafka:
        pid = kafka.pid(1)
        assert probe_node(kafka).node_ids == {1}
    assert pid is not None
    assert not exists(pid)


PARENT = """
import os, signal
from asyncgroup.testing.apache_kafka import ApacheKafka
kafka = ApacheKafka()
kafka.start()
print(kafka.pid(1), kafka._started().nodes[1].directory.parent, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
def test_nodes_are_killed_with_their_parent() -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=90, check=False
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    pid, directory = parent.stdout.split()
    try:
        with time_limit(15) as expired:
            while exists(int(pid)) or Path(directory).exists():
                assert not expired.wait(0.05), f"node {pid} or its directory {directory} is still there"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
