"""A real Apache Kafka for tests of any directory, started once per run; `tests/conftest.py` takes the fixtures in.

- `apache_kafka`: one node, or the Kafka that the environment variable `ASYNCGROUP_KAFKA=host:port` names.
- `apache_kafka_3`: three nodes of our own, which tests may kill, suspend and restart, and leave running.
- `kafka_at_hand`: asked for by tests that start a Kafka of their own.

Where no Java or no jars can be had these tests are skipped with the reason; `ASYNCGROUP_REQUIRE_KAFKA=1`
makes that a failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from asyncgroup.java import JavaNotFound, require_java
from asyncgroup.testing.apache_kafka import ApacheKafka, KafkaJarsUnavailable, kafka_jars
from asyncgroup.testing.kafka_probe import ask
from tests.real.support import ExternalKafka, RunningKafka

OWN = {"apache_kafka_3", "kafka_at_hand"}
__all__ = ["apache_kafka", "apache_kafka_3", "kafka_at_hand", "pytest_collection_finish"]

EXTERNAL = os.environ.get("ASYNCGROUP_KAFKA", "")

_missing = pytest.StashKey[str | None]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch Kafka before the first test, so that the one-time download is not within a test's time limit."""
    fixtures = OWN if EXTERNAL else OWN | {"apache_kafka"}
    wanted = any(fixtures & set(getattr(item, "fixturenames", ())) for item in session.items)
    if wanted and not session.config.option.collectonly:
        with _uncaptured(session.config):
            _what_is_missing(session.config)


def _uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    """Lets the progress of the download through to the terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext()


def _what_is_missing(config: pytest.Config) -> str | None:
    """Why no Kafka can be run here, or None; found out once."""
    if _missing not in config.stash:
        config.stash[_missing] = _try_to_get_kafka()
    return config.stash[_missing]


def _try_to_get_kafka() -> str | None:
    try:
        require_java("run Apache Kafka")
        kafka_jars()
    except (JavaNotFound, KafkaJarsUnavailable) as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def kafka_at_hand(request: pytest.FixtureRequest) -> None:
    """Skips the test, or fails it, where Apache Kafka cannot be run."""
    reason = _what_is_missing(request.config)
    if reason is None:
        return
    if os.environ.get("ASYNCGROUP_REQUIRE_KAFKA") == "1":
        pytest.fail(f"ASYNCGROUP_REQUIRE_KAFKA=1, but: {reason}", pytrace=False)
    pytest.skip(f"no Apache Kafka: {reason}")


@pytest.fixture(scope="session")
def apache_kafka(request: pytest.FixtureRequest) -> Iterator[RunningKafka]:
    """One real node that all tests share."""
    if EXTERNAL:
        host, _, port = EXTERNAL.split(",")[0].rpartition(":")
        try:
            ask(host, int(port), limit=10)
        except (OSError, ValueError) as error:
            pytest.fail(f"ASYNCGROUP_KAFKA={EXTERNAL} does not answer: {error}", pytrace=False)
        yield ExternalKafka(EXTERNAL)
        return
    request.getfixturevalue("kafka_at_hand")
    with ApacheKafka() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def apache_kafka_3(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """Three real nodes that all tests share; a test that takes one down brings it back."""
    with ApacheKafka(3) as kafka:
        yield kafka
