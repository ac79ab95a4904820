"""Find Kafka's jars in the cache; tests that compare with them do not download anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncgroup.java import user_cache
from asyncgroup.testing.apache_kafka.jars import KAFKA_VERSION


def kafka_jar(artifact: str) -> Path:
    """Return the jar of the release that `tables.py` is generated from; skip the test if it is not available."""
    given = os.environ.get("ASYNCGROUP_KAFKA_JARS")
    directory = Path(given) if given else user_cache() / "kafka" / KAFKA_VERSION
    jar = directory / f"{artifact}-{KAFKA_VERSION}.jar"
    if not jar.is_file():
        pytest.skip(
            f"{jar.name} is neither in Kafka's cache nor in ASYNCGROUP_KAFKA_JARS (the tests in tests/real fetch it)"
        )
    return jar
