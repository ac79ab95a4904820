"""ApacheKafka's retries and cleanup around a start, with a fake cluster instead of processes."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from asyncgroup.errors import UsageError
from asyncgroup.java import Java
from asyncgroup.testing.apache_kafka import ApacheKafka, KafkaStartError, launcher
from asyncgroup.testing.apache_kafka.node import PortInUse


class FakeCluster:
    """Replaces ApacheCluster; the next starts raise the `outcomes`, and `events` are the calls so far."""

    outcomes: list[BaseException | None]
    events: list[str]
    starting: threading.Event
    wait_until_abandoned = False

    def __init__(self, *_: object) -> None:
        self.nodes: dict[int, object] = {}

    def start(self, abandoned: threading.Event) -> None:
        self.events.append("start")
        self.starting.set()
        if self.wait_until_abandoned:
            assert abandoned.wait(60)
            raise KafkaStartError("abandoned")
        if self.outcomes and (outcome := self.outcomes.pop(0)) is not None:
            raise outcome

    def close(self) -> None:
        self.events.append("close")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[FakeCluster]:
    class Fresh(FakeCluster):
        outcomes: list[BaseException | None] = []
        events: list[str] = []
        starting = threading.Event()

    java = Java(home=Path("/jdk"), executable=Path("/jdk/bin/java"), version=17, origin="PATH")
    monkeypatch.setattr(launcher, "require_java", lambda _: java)
    monkeypatch.setattr(launcher, "kafka_jars", lambda _: Path("/jars"))
    monkeypatch.setattr(launcher, "ApacheCluster", Fresh)
    return Fresh


def test_a_start_is_retried_with_new_ports_if_a_port_is_in_use(cluster: type[FakeCluster]) -> None:
    cluster.outcomes = [PortInUse("a"), PortInUse("b")]
    with ApacheKafka():
        assert cluster.events == ["start", "close", "start", "close", "start"]
    assert cluster.events[-1] == "close"


def test_starts_are_retried_at_most_five_times(cluster: type[FakeCluster]) -> None:
    cluster.outcomes = [PortInUse(str(number)) for number in range(1, 9)]
    with pytest.raises(PortInUse, match="5"):
        ApacheKafka().start()
    assert cluster.events == ["start", "close"] * 5


@pytest.mark.parametrize("error", [KafkaStartError("no"), KeyboardInterrupt(), OSError("no java")])
def test_a_failed_start_is_cleaned_up(cluster: type[FakeCluster], error: BaseException) -> None:
    cluster.outcomes = [error]
    kafka = ApacheKafka()
    with pytest.raises(type(error)):
        kafka.start()
    assert cluster.events == ["start", "close"]
    kafka.start()
    kafka.stop()
    kafka.stop()
    assert cluster.events == ["start", "close"] * 2


def test_usage_errors(cluster: type[FakeCluster]) -> None:
    kafka = ApacheKafka(2)
    assert repr(kafka) == "<ApacheKafka 4.3.1 not started>"
    with pytest.raises(UsageError, match="call start\\(\\)"):
        _ = kafka.bootstrap_servers
    with kafka, pytest.raises(UsageError, match="running already"):
        kafka.start()
    with kafka, pytest.raises(UsageError, match="there is no node 7"):
        kafka.kill(7)


@pytest.mark.usefixtures("cluster")
def test_a_frozen_program_cannot_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.executable` is the program, which the watchdog would run again."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(UsageError, match="a frozen program cannot start Apache Kafka"):
        ApacheKafka().start()


async def test_a_cancelled_start_gives_up_and_cleans_up(cluster: type[FakeCluster]) -> None:
    cluster.wait_until_abandoned = True
    task = asyncio.create_task(ApacheKafka().__aenter__())
    await asyncio.to_thread(cluster.starting.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.events == ["start", "close"]


async def test_async_with(cluster: type[FakeCluster]) -> None:
    async with ApacheKafka():
        assert cluster.events == ["start"]
    assert cluster.events == ["start", "close"]
