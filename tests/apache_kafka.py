"""A real Apache Kafka for tests of any directory, started once per run; `tests/conftest.py` takes the fixtures in.

- `apache_kafka`: one node, or the Kafka that the environment variable `ASYNCGROUP_KAFKA=host:port` names.
- `apache_kafka_3`: three nodes of our own, which tests may kill, suspend and restart, and leave running.
- `kafka_to_break`: one node of our own, for the same.
- `kafka_39`: one node of an old release.
- `kafka_at_hand`: asked for by tests that start a Kafka of their own.

Where no Java or no jars can be had these tests are skipped with the reason; `ASYNCGROUP_REQUIRE_KAFKA=1`
makes that a failure. `ASYNCGROUP_KAFKA_VERSION` names another release for the first two.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from asyncgroup.java import JavaNotFound, require_java
from asyncgroup.testing.apache_kafka import KAFKA_VERSION, ApacheKafka, KafkaJarsUnavailable, kafka_jars
from asyncgroup.testing.kafka_jars import OLD_KAFKA_VERSION
from asyncgroup.testing.kafka_probe import probe
from tests.real.support import ExternalKafka, RunningKafka

OWN = {"apache_kafka_3", "kafka_at_hand", "kafka_to_break"}
__all__ = [
    "apache_kafka",
    "apache_kafka_3",
    "kafka_39",
    "kafka_at_hand",
    "kafka_to_break",
    "pytest_collection_finish",
]

EXTERNAL = os.environ.get("ASYNCGROUP_KAFKA", "")
VERSION = os.environ.get("ASYNCGROUP_KAFKA_VERSION", KAFKA_VERSION)

_missing = pytest.StashKey[dict[str, str | None]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch Kafka before the first test, so that the one-time download is not within a test's time limit."""
    fixtures = OWN if EXTERNAL else OWN | {"apache_kafka"}
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted = {VERSION: bool(fixtures & asked), OLD_KAFKA_VERSION: "kafka_39" in asked}
    if not session.config.option.collectonly:
        with _uncaptured(session.config):
            for version in (version for version, is_wanted in wanted.items() if is_wanted):
                _what_is_missing(session.config, version)


def _uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    """Lets the progress of the download through to the terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext()


def _what_is_missing(config: pytest.Config, version: str) -> str | None:
    """Why no Kafka of this version can be run here, or None; found out once."""
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
    """Skip the test, or fail it, where Apache Kafka cannot be run."""
    reason = _what_is_missing(config, version)
    if reason is None:
        return
    if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
        pytest.fail(f"ASYNCGROUP_REQUIRE_KAFKA=1, but: {reason}", pytrace=False)
    pytest.skip(f"no Apache Kafka: {reason}")


@pytest.fixture(scope="session")
def kafka_at_hand(request: pytest.FixtureRequest) -> None:
    """Skips the test, or fails it, where Apache Kafka cannot be run."""
    _require(request.config, VERSION)


@pytest.fixture(scope="session")
def apache_kafka(request: pytest.FixtureRequest) -> Iterator[RunningKafka]:
    """One real node that all tests share."""
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
        yield kafka


@pytest.fixture(scope="session")
def apache_kafka_3(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """Three real nodes that all tests share; a test that takes one down brings it back."""
    with ApacheKafka(3, version=VERSION) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka_to_break(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """One real node that tests may take down, and bring back, with all that others have left on it."""
    with ApacheKafka(version=VERSION) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka_39(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """One node of Kafka 3.9, the last release with the protocol's oldest versions."""
    _require(request.config, OLD_KAFKA_VERSION)
    with ApacheKafka(version=OLD_KAFKA_VERSION) as kafka:
        yield kafka
