"""ApachePulsar, the helper that starts a real Pulsar, tested with another client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from asyncgroup.testing.apache_pulsar import ApachePulsar, PulsarAdmin, PulsarAdminError, PulsarStartError
from asyncgroup.testing.apache_pulsar.standalone import PulsarPortInUse, PulsarStandalone
from asyncgroup.testing.java_server.starting import time_limit
from tests.apache_pulsar import RunningPulsar
from tests.real.certificates import Authority

pytestmark = pytest.mark.usefixtures("pulsar_at_hand")

RECEIVE_LIMIT = 60_000  # ms; on a busy machine the first use of a topic takes seconds


@contextlib.contextmanager
def connected(service_url: str, **options: object) -> Iterator[pulsar.Client]:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)
    try:
        yield client
    finally:
        client.close()


def new_topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def produce(service_url: str, topic: str, values: list[bytes], **options: object) -> None:
    """Produce messages, each acknowledged by the broker."""
    with connected(service_url, **options) as client:
        producer = client.create_producer(topic)
        for value in values:
            producer.send(value)


def consume(service_url: str, topic: str, count: int, **options: object) -> list[bytes]:
    """Return the first `count` values of a topic, in a new subscription."""
    with connected(service_url, **options) as client:
        consumer = client.subscribe(topic, uuid.uuid4().hex, initial_position=pulsar.InitialPosition.Earliest)
        values = []
        for _ in range(count):
            message = consumer.receive(RECEIVE_LIMIT)
            consumer.acknowledge(message)
            values.append(message.data())
        return values


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a process whose parent has ended may stay a zombie if no other process reaps it
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_another_client_talks_to_it(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    produce(apache_pulsar.service_url, topic, [b"a", b"b"])
    assert consume(apache_pulsar.service_url, topic, 2) == [b"a", b"b"]


async def test_topics(apache_pulsar: RunningPulsar) -> None:
    admin, topic = apache_pulsar.admin, new_topic()
    full = f"persistent://public/default/{topic}"
    await admin.create_partitioned_topic(topic, 2)
    await admin.update_partitions(topic, 3)
    assert await admin.partitions(full) == 3
    assert [name for name in await admin.topics() if topic in name] == [
        f"{full}-partition-{number}" for number in range(3)
    ]
    await admin.create_subscription(topic, "readers", "earliest")
    assert await admin.subscriptions(topic) == ["readers"]
    await asyncio.to_thread(produce, apache_pulsar.service_url, topic, [b"1", b"2", b"3"])
    stats = await admin.partitioned_stats(topic)
    assert stats["subscriptions"]["readers"]["msgBacklog"] == 3
    await admin.unload(topic)
    assert await asyncio.to_thread(consume, apache_pulsar.service_url, topic, 3)
    await admin.delete_subscription(topic, "readers")
    await admin.delete_topic(topic)
    assert not [name for name in await admin.topics() if topic in name]


@pytest.mark.full
async def test_a_terminated_topic(apache_pulsar: RunningPulsar) -> None:
    admin, topic = apache_pulsar.admin, new_topic()
    await asyncio.to_thread(produce, apache_pulsar.service_url, topic, [b"last"])
    ledger, entry = await admin.terminate(topic)
    assert ((await admin.internal_stats(topic))["lastConfirmedEntry"]) == f"{ledger}:{entry}"
    with pytest.raises(pulsar.TopicTerminated):
        await asyncio.to_thread(produce, apache_pulsar.service_url, topic, [b"more"])
    await admin.delete_topic(topic)


@pytest.mark.full
async def test_policies(apache_pulsar: RunningPulsar) -> None:
    admin, namespace = apache_pulsar.admin, f"public/{new_topic()}"
    await admin.create_namespace(namespace)
    await admin.set_policy(namespace, "deduplication", value=True)
    assert await admin.request("GET", f"namespaces/{namespace}/deduplication") is True
    await admin.create_topic(f"{namespace}/limited")
    await admin.set_topic_policy(f"{namespace}/limited", "maxConsumers", 1)
    with time_limit(60) as expired:  # policies of a topic are a topic, which the broker reads a moment later
        while await admin.request("GET", f"persistent/{namespace}/limited/maxConsumers") != 1:
            assert not expired.is_set()
            await asyncio.sleep(0.1)
    await admin.unload_namespace(namespace)


@pytest.mark.full
async def test_errors_of_the_admin_api(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    with pytest.raises(PulsarAdminError, match=rf"404 Not Found: .*{topic}") as absent:
        await apache_pulsar.admin.stats(topic)
    assert absent.value.status == 404
    await apache_pulsar.admin.create_topic(topic)
    with pytest.raises(PulsarAdminError, match="409") as created:
        await apache_pulsar.admin.create_topic(topic)
    assert created.value.status == 409


@pytest.mark.full
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_it_comes_back_with_its_data(pulsar_to_break: ApachePulsar, end: str) -> None:
    topic, values = new_topic(), [b"%d" % number for number in range(300)]
    produce(pulsar_to_break.service_url, topic, values)
    before = (pulsar_to_break.service_url, pulsar_to_break.admin_url)
    getattr(pulsar_to_break, end)()
    try:
        assert pulsar_to_break.pid is None
        port = int(pulsar_to_break.service_url.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        pulsar_to_break.start()
    assert (pulsar_to_break.service_url, pulsar_to_break.admin_url) == before
    assert consume(pulsar_to_break.service_url, topic, len(values)) == values


@pytest.mark.full
async def test_a_suspended_process_accepts_connections_and_does_not_answer(
    pulsar_to_break: ApachePulsar,
) -> None:
    pulsar_to_break.suspend()
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pulsar_to_break.admin.topics(), 0.5)
        assert "suspended" in repr(pulsar_to_break)
    finally:
        pulsar_to_break.resume()
    assert isinstance(await pulsar_to_break.admin.topics(), list)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc of Linux")
def test_it_listens_on_the_loopback_interface_only(pulsar_to_break: ApachePulsar) -> None:
    pid = pulsar_to_break.pid
    links = list[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed just now
            links.append(str(each.readlink()))
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    listening = [
        fields[1].rpartition(":")[0] for fields in lines if fields[3] == "0A" and fields[9] in inodes
    ]
    assert len(listening) == 3, "broker, admin API and bookie"
    assert all(address.endswith("0100007F") for address in listening), listening


@pytest.mark.full
def test_a_second_process_on_the_ports_is_not_taken_for_it(pulsar_to_break: ApachePulsar) -> None:
    """The started process fails, and the other one's answer on the port is not taken for its answer."""
    run = pulsar_to_break._started()
    twin = PulsarStandalone(run.process.directory / "twin", run._watchdog)
    command = [word.replace(str(run.process.data), str(twin.data)) for word in run._command([])]
    twin.start(command)
    try:
        with time_limit(100) as expired, pytest.raises(PulsarPortInUse, match="Address already in use"):
            while not expired.wait(0.1):
                twin.check()
        assert twin.pid is None
    finally:
        twin.kill()


@pytest.mark.full
def test_tokens_and_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.sign("broker", "IP:127.0.0.1")
    with ApachePulsar(token_authentication=True, certificate=certificate) as secure:
        trust = {"tls_trust_certs_file_path": authority.ca_file, "tls_validate_hostname": True}
        ann, bob = (pulsar.AuthenticationToken(secure.token(role)) for role in ("ann", "bob"))
        asyncio.run(secure.admin.grant("public/default", "ann", "produce", "consume"))
        topic = new_topic()
        produce(secure.service_url_tls, topic, [b"secret"], authentication=ann, **trust)
        assert consume(secure.service_url, topic, 1, authentication=ann) == [b"secret"]
        with pytest.raises(pulsar.AuthorizationError):
            produce(secure.service_url, topic, [b"no"], authentication=bob)
        expired = PulsarAdmin(secure.admin_url, secure.token("admin", lifetime=-60))
        for admin in (expired, PulsarAdmin(secure.admin_url)):
            with pytest.raises(PulsarAdminError, match="401 Unauthorized"):
                asyncio.run(admin.topics())


@pytest.mark.full
def test_a_failed_start_reports_the_reason_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(
        PulsarStartError, match=r"(?s)ended with exit code 1:\nException in thread.*NumberFormat"
    ):
        ApachePulsar(properties={"maxMessageSize": "large"}).start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_start_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PulsarStartError, match=r"was not ready after 0\.2 s"):
        ApachePulsar(start_timeout=0.2).start()
    assert list(tmp_path.iterdir()) == []


PARENT = """
import os, signal
from asyncgroup.testing.apache_pulsar import ApachePulsar
pulsar = ApachePulsar()
pulsar.start()
print(pulsar.pid, pulsar.data.parents[1], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
def test_it_is_killed_with_its_parent() -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=110, check=False
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    pid, directory = parent.stdout.split()
    try:
        with time_limit(15) as expired:
            while exists(int(pid)) or Path(directory).exists():
                assert not expired.wait(0.05), f"process {pid} or its directory {directory} is still there"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
