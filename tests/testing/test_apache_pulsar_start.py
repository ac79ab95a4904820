"""ApachePulsar's retries and cleanup around a start, with a fake run instead of a process."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from asyncgroup.errors import UsageError
from asyncgroup.java import Java
from asyncgroup.testing.apache_pulsar import ApachePulsar, PulsarStartError, launcher
from asyncgroup.testing.apache_pulsar.standalone import PulsarPortInUse


class FakeRun:
    """Replaces StandaloneRun; the next starts raise the `outcomes`, and `events` are the calls so far."""

    outcomes: list[BaseException | None]
    events: list[str]
    starting: threading.Event
    wait_until_abandoned = False

    def __init__(self, *_: object) -> None:
        self.events.append("new")

    def start(self, abandoned: threading.Event) -> None:
        self.events.append("start")
        self.starting.set()
        if self.wait_until_abandoned:
            assert abandoned.wait(60)
            raise PulsarStartError("abandoned")
        if self.outcomes and (outcome := self.outcomes.pop(0)) is not None:
            raise outcome

    def close(self) -> None:
        self.events.append("close")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> type[FakeRun]:
    class Fresh(FakeRun):
        outcomes: list[BaseException | None] = []
        events: list[str] = []
        starting = threading.Event()

    java = Java(home=Path("/jdk"), executable=Path("/jdk/bin/java"), version=17, origin="PATH")
    monkeypatch.setattr(launcher, "require_java", lambda _: java)
    monkeypatch.setattr(launcher, "pulsar_jars", lambda _: Path("/jars"))
    monkeypatch.setattr(launcher, "StandaloneRun", Fresh)
    return Fresh


def test_a_start_is_retried_with_new_ports_if_a_port_is_in_use(run: type[FakeRun]) -> None:
    run.outcomes = [PulsarPortInUse("a"), PulsarPortInUse("b")]
    with ApachePulsar():
        assert run.events == ["new", "start", "close"] * 2 + ["new", "start"]
    assert run.events[-1] == "close"


def test_starts_are_retried_at_most_five_times(run: type[FakeRun]) -> None:
    run.outcomes = [PulsarPortInUse(str(number)) for number in range(1, 9)]
    with pytest.raises(PulsarPortInUse, match="5"):
        ApachePulsar().start()
    assert run.events == ["new", "start", "close"] * 5


@pytest.mark.parametrize("error", [PulsarStartError("no"), KeyboardInterrupt(), OSError("no java")])
def test_a_failed_start_is_cleaned_up(run: type[FakeRun], error: BaseException) -> None:
    run.outcomes = [error]
    pulsar = ApachePulsar()
    with pytest.raises(type(error)):
        pulsar.start()
    assert run.events == ["new", "start", "close"]
    pulsar.start()
    pulsar.close()
    pulsar.close()
    assert run.events == ["new", "start", "close"] * 2


def test_a_further_start_keeps_the_ports_and_the_data(run: type[FakeRun]) -> None:
    with ApachePulsar() as pulsar:
        pulsar.start()
        run.outcomes = [PulsarPortInUse("taken")]
        with pytest.raises(PulsarPortInUse, match="taken"):
            pulsar.start()
        assert run.events == ["new", "start", "start", "start"]


def test_usage_errors(run: type[FakeRun]) -> None:
    pulsar = ApachePulsar()
    assert repr(pulsar) == "<ApachePulsar 4.2.4 not started>"
    for call in (pulsar.kill, pulsar.stop, pulsar.restart, pulsar.suspend, pulsar.resume, pulsar.log_tail):
        with pytest.raises(UsageError, match="call start\\(\\)"):
            call()
    for name in ("service_url", "admin_url", "admin", "pid", "data", "secret_key"):
        with pytest.raises(UsageError, match="call start\\(\\)"):
            getattr(pulsar, name)
    with pulsar, pytest.raises(UsageError, match="no TLS port: pass a certificate"):
        _ = pulsar.service_url_tls


@pytest.mark.usefixtures("run")
def test_a_frozen_program_cannot_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.executable` is the program, which the watchdog would run again."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(UsageError, match="a frozen program cannot start Apache Pulsar"):
        ApachePulsar().start()


async def test_a_cancelled_start_gives_up_and_cleans_up(run: type[FakeRun]) -> None:
    run.wait_until_abandoned = True
    task = asyncio.create_task(ApachePulsar().__aenter__())
    await asyncio.to_thread(run.starting.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.events == ["new", "start", "close"]


async def test_async_with(run: type[FakeRun]) -> None:
    async with ApachePulsar():
        assert run.events == ["new", "start"]
    assert run.events == ["new", "start", "close"]
