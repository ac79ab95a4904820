"""Fixtures with a real Apache Kafka, started once per test run; `tests/conftest.py` imports them.

- `apache_kafka`: one node, or the Kafka that the environment variable `ASYNCGROUP_KAFKA=host:port` names.
- `apache_kafka_3`: three nodes, which tests may kill, suspend and restart; they must leave them running.
- `kafka_to_break`: one node, for the same.
- `kafka_39`: one node of an old release.
- `kafka_at_hand`: for tests that start their own Kafka.

Each is stopped after the last test that uses it: an idle node takes some hundredths of a core.

Without Java or Kafka's jars these tests are skipped with the reason; with `ASYNCGROUP_REQUIRE_KAFKA=1` they fail.
`ASYNCGROUP_KAFKA_VERSION` selects another release for the first two fixtures.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator

import pytest

from asyncgroup.java import JavaNotFound, require_java
from asyncgroup.testing.apache_kafka import KAFKA_VERSION, ApacheKafka, KafkaJarsUnavailable, kafka_jars
from asyncgroup.testing.apache_kafka.probe import probe
from tests.real.support import ExternalKafka, RunningKafka

OWN = {"apache_kafka_3", "kafka_at_hand", "kafka_to_break"}
__all__ = [
    "apache_kafka",
    "apache_kafka_3",
    "kafka_39",
    "kafka_at_hand",
    "kafka_to_break",
    "pytest_collection_finish",
    "pytest_runtest_teardown",
    "stop_after_last_use",
    "uncaptured",
]

EXTERNAL = os.environ.get("ASYNCGROUP_KAFKA", "")
VERSION = os.environ.get("ASYNCGROUP_KAFKA_VERSION", KAFKA_VERSION)
OLD_KAFKA_VERSION = "3.9.1"
"""The last release line before 4.0, which removed the protocol versions of clients older than 2.1 (KIP-896)."""

_missing = pytest.StashKey[dict[str, str | None]]()
_last_used = pytest.StashKey[defaultdict[str, list[Callable[[], None]]]]()
"""What stops the servers that are not needed after a test, by the test's name."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Download Kafka before the first test, so that the one-time download does not count toward a test's timeout."""
    fixtures = OWN if EXTERNAL else OWN | {"apache_kafka"}
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted = {VERSION: bool(fixtures & asked), OLD_KAFKA_VERSION: "kafka_39" in asked}
    if not session.config.option.collectonly:
        with uncaptured(session.config):
            for version in (version for version, is_wanted in wanted.items() if is_wanted):
                _what_is_missing(session.config, version)


def uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    """Return a context that disables output capture, so that the terminal shows the progress of the download."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext()


def _what_is_missing(config: pytest.Config, version: str) -> str | None:
    """Return why Kafka of this version cannot be run here, or None; checked once."""
    known = config.stash.setdefault(_missing, {})
    if version not in known:
        known[version] = _try_to_get_kafka(version)
    return known[version]


def _try_to_get_kafka(version: str) -> str | None:
    try:
        require_java("run Apache Kafka")
        kafka_jars(version)
    except (JavaNotFound, KafkaJarsUnavailable) as error:
        return str(error)
    return None


def _require(config: pytest.Config, version: str) -> None:
    """Skip the test if Apache Kafka cannot be run, or fail it if Kafka is required."""
    reason = _what_is_missing(config, version)
    if reason is None:
        return
    if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
        pytest.fail(f"ASYNCGROUP_REQUIRE_KAFKA=1, but: {reason}", pytrace=False)
    pytest.skip(f"no Apache Kafka: {reason}")


def stop_after_last_use(request: pytest.FixtureRequest, stop: Callable[[], None]) -> None:
    """Stop a server after the last selected test with this fixture, unless that one runs in another worker."""
    last_used = request.session.stash.setdefault(_last_used, defaultdict(list))
    for item in reversed(request.session.items):
        if request.fixturename in getattr(item, "fixturenames", ()):
            last_used[item.nodeid].append(stop)
            return


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    for stop in item.session.stash.setdefault(_last_used, defaultdict(list)).pop(item.nodeid, []):
        stop()


@pytest.fixture(scope="session")
def kafka_at_hand(request: pytest.FixtureRequest) -> None:
    """Skip the test if Apache Kafka cannot be run, or fail it if Kafka is required."""
    _require(request.config, VERSION)


@pytest.fixture(scope="session")
def apache_kafka(request: pytest.FixtureRequest) -> Iterator[RunningKafka]:
    """One Apache Kafka node, shared by all tests."""
    if EXTERNAL:
        host, _, port = EXTERNAL.split(",")[0].rpartition(":")
        try:
            probe(host, int(port), limit=10)
        except (OSError, ValueError) as error:
            pytest.fail(f"ASYNCGROUP_KAFKA={EXTERNAL} does not answer: {error}", pytrace=False)
        yield ExternalKafka(EXTERNAL)
        return
    request.getfixturevalue("kafka_at_hand")
    with ApacheKafka(version=VERSION) as kafka:
        stop_after_last_use(request, kafka.stop)
        yield kafka


@pytest.fixture(scope="session")
def apache_kafka_3(request: pytest.FixtureRequest, kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """Three Apache Kafka nodes, shared by all tests; a test that stops one starts it again."""
    with ApacheKafka(3, version=VERSION) as kafka:
        stop_after_last_use(request, kafka.stop)
        yield kafka


@pytest.fixture(scope="session")
def kafka_to_break(request: pytest.FixtureRequest, kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """One Apache Kafka node that tests may stop and must start again; it keeps the topics and groups of other tests."""
    with ApacheKafka(version=VERSION) as kafka:
        stop_after_last_use(request, kafka.stop)
        yield kafka


@pytest.fixture(scope="session")
def kafka_39(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """One node of Kafka 3.9, the last release with the protocol's oldest versions."""
    _require(request.config, OLD_KAFKA_VERSION)
    with ApacheKafka(version=OLD_KAFKA_VERSION) as kafka:
        stop_after_last_use(request, kafka.stop)
        yield kafka
