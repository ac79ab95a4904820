"""Fixtures with a real Apache Pulsar; `tests/conftest.py` imports them.

- `apache_pulsar`: one standalone for the whole run, shared by the workers: their main process starts it in the background
  while other tests run, if a test uses it. A `RunningPulsar`.
- `pulsar_to_break`: one that tests may kill, suspend and restart; they must leave it running. An `ApachePulsar`.
- `pulsar_at_hand`: for tests that start their own Pulsar, or need its jars only.

Without Java or Pulsar's jars these tests are skipped with the reason; with `ASYNCGROUP_REQUIRE_KAFKA=1` they fail, and in
any case if Pulsar does not start.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Protocol

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.java import JavaNotFound, require_java
from asyncgroup.testing.apache_pulsar import ApachePulsar, PulsarAdmin, PulsarJarsUnavailable, pulsar_jars
from asyncgroup.testing.java_server.starting import time_limit
from tests.apache_kafka import stop_after_last_use, uncaptured
from tests.workers import shared_directory

__all__ = ["PLUGIN", "RunningPulsar", "SharedPulsar", "apache_pulsar", "pulsar_at_hand", "pulsar_to_break"]

FIXTURES = {"apache_pulsar", "pulsar_at_hand", "pulsar_to_break"}

PLUGIN = "shared-pulsar"
"""The name under which `tests/conftest.py` registers the plugin."""

START_LIMIT = 100.0
"""Seconds; less than a test may take."""

_missing = pytest.StashKey[str | None]()


class RunningPulsar(Protocol):
    """A running Pulsar. Tests that share it use topics and subscriptions with unique names, and change nothing else."""

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`."""

    @property
    def admin_url(self) -> str:
        """`http://host:port`."""

    @property
    def admin(self) -> PulsarAdmin:
        """An asyncio client of the admin API."""


class SharedServer:
    """The Pulsar that the main process has started."""

    def __init__(self, service_url: str, admin_url: str) -> None:
        self.service_url = service_url
        self.admin_url = admin_url
        self.admin = PulsarAdmin(admin_url)


class SharedPulsar:
    """A plugin of pytest: it starts the Pulsar that all workers share, if a selected test uses it, and stops it at the end.

    The workers know which tests are selected, and the main process lives as long as all of them: a worker asks for Pulsar
    by a file in the directory that they share, and finds its addresses in another one.
    """

    def __init__(self, config: pytest.Config) -> None:
        directory = shared_directory(config)
        self._asked = directory / "pulsar-is-used"
        self._answer = directory / "pulsar.json"
        self._is_worker = hasattr(config, "workerinput")
        self._pulsar = ApachePulsar(start_timeout=START_LIMIT)
        self._abandoned = threading.Event()
        self._thread: threading.Thread | None = None

    @pytest.hookimpl(tryfirst=True)  # before xdist reports that this worker has collected its tests
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Download Pulsar before the first test, so that this does not count toward a test's timeout."""
        # those of the embedded Pulsar have an `apache_pulsar` of their own
        items = [item for item in session.items if "pulsar_broker" not in item.path.parts]
        used = {name for item in items for name in getattr(item, "fixturenames", ())}
        if session.config.option.collectonly or FIXTURES.isdisjoint(used):
            return
        with uncaptured(session.config):
            reason = _what_is_missing(session.config)
        if reason is None and "apache_pulsar" in used:
            self._asked.touch()
            self._start_if_asked()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Start Pulsar in the main process when a worker has asked for it."""
        self._start_if_asked()

    def pytest_unconfigure(self) -> None:
        """Stop Pulsar, also while it starts."""
        if self._thread is not None:
            self._abandoned.set()
            self._thread.join()
            self._pulsar.close()

    def _start_if_asked(self) -> None:
        if not self._is_worker and self._thread is None and self._asked.exists():
            self._thread = threading.Thread(target=self._start, name="start-pulsar")
            self._thread.start()

    def _start(self) -> None:
        try:
            self._pulsar._start(self._abandoned)
            answer = {"service_url": self._pulsar.service_url, "admin_url": self._pulsar.admin_url}
        except (AsyncGroupError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        written = self._answer.with_suffix(".new")
        written.write_text(json.dumps(answer))
        written.replace(self._answer)

    def wait(self) -> SharedServer:
        """Wait until Pulsar runs; fail the test if it does not."""
        with time_limit(START_LIMIT + 10) as expired:
            while not self._answer.exists():
                if expired.wait(0.05):
                    pytest.fail("the main process has not started Apache Pulsar", pytrace=False)
        answer = json.loads(self._answer.read_text())
        if "error" in answer:
            pytest.fail(answer["error"], pytrace=False)
        return SharedServer(**answer)


def _what_is_missing(config: pytest.Config) -> str | None:
    """Return why Pulsar cannot be run here, or None; checked once."""
    if _missing not in config.stash:
        config.stash[_missing] = None
        try:
            require_java("run Apache Pulsar")
            pulsar_jars()
        except (JavaNotFound, PulsarJarsUnavailable) as error:
            config.stash[_missing] = str(error)
    return config.stash[_missing]


@pytest.fixture(scope="session")
def pulsar_at_hand(request: pytest.FixtureRequest) -> None:
    """Skip the test if Apache Pulsar cannot be run, or fail it if Pulsar is required."""
    reason = _what_is_missing(request.config)
    if reason is None:
        return
    if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
        pytest.fail(f"ASYNCGROUP_REQUIRE_KAFKA=1, but: {reason}", pytrace=False)
    pytest.skip(f"no Apache Pulsar: {reason}")


@pytest.fixture(scope="session")
def apache_pulsar(request: pytest.FixtureRequest, pulsar_at_hand: None) -> RunningPulsar:
    """An Apache Pulsar, shared by all tests and workers."""
    shared = request.config.pluginmanager.get_plugin(PLUGIN)
    assert isinstance(shared, SharedPulsar)
    return shared.wait()


@pytest.fixture(scope="session")
def pulsar_to_break(request: pytest.FixtureRequest, pulsar_at_hand: None) -> Iterator[ApachePulsar]:
    """An Apache Pulsar that tests may stop and must start again; it keeps the topics of other tests."""
    with ApachePulsar(start_timeout=START_LIMIT) as pulsar:
        stop_after_last_use(request, pulsar.close)
        yield pulsar
